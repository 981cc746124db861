"""What a rank reads of the next one's cache is what that one appended."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Ranks
from suites.shared.step import once
from suites.symmetric_memory.programs.kv_cache import Operation, kv_cache, new_tokens

pytestmark = pytest.mark.ranks(2)

WHAT = ("append", "append", "free")
CACHE = {"pages": 6, "page_tokens": 3, "heads": 2, "features": 2}


# Appends, and frees of what may not be there yet: ``after`` leaves those out. An operation is one drawn number:
# lists of tuples take hypothesis longer to draw than the ranks to run.
cache_operations = st.lists(
    st.integers(0, 3 * 4 * 7 - 1).map(lambda n: (WHAT[n % 3], n // 3 % 4, n // 12 + 1)), max_size=8
)


def after(rank: int, operations: list[Operation]) -> tuple[list[Operation], dict[int, torch.Tensor], list[int]]:
    """Operations without frees of nothing, and the cache that they leave: its sequences, and what it refused.

    By another way than the cache: a list of tokens for each sequence, and a count of the pages that they need.
    """
    kept: list[Operation] = []
    sequences: dict[int, list[torch.Tensor]] = {}
    refused: list[int] = []

    def pages(held: dict[int, int]) -> int:
        return sum(-(-tokens // CACHE["page_tokens"]) for tokens in held.values())

    for what, sequence, count in operations:
        if what == "free":
            if sequence in sequences:
                del sequences[sequence]
                kept.append((what, sequence, count))
            continue
        held = {name: sum(part.shape[1] for part in parts) for name, parts in sequences.items()}
        start = held.get(sequence, 0)
        if pages(held | {sequence: start + count}) > CACHE["pages"]:
            refused.append(len(kept))
        else:
            tokens = new_tokens(rank, sequence, start, count, heads=CACHE["heads"], features=CACHE["features"])
            sequences.setdefault(sequence, []).append(tokens)
        kept.append((what, sequence, count))
    return kept, {name: torch.cat(parts, dim=1) for name, parts in sequences.items()}, refused


def assert_cached(ranks: Ranks, operations: Sequence[list[Operation]], **kwargs: bool) -> None:
    models = [after(rank, each) for rank, each in enumerate(operations)]
    results = ranks.run(once, kv_cache, operations=[kept for kept, _, _ in models], **CACHE, **kwargs)
    for rank, (read, refused) in enumerate(results):
        peer = (rank + 1) % ranks.world_size
        sequences = models[peer][1]
        assert list(read) == list(sequences)
        for name, tokens in sequences.items():
            assert torch.equal(read[name], tokens), f"rank {rank} read a wrong sequence {name} of rank {peer}"
        assert refused == models[rank][2]


@given(operations=st.tuples(cache_operations, cache_operations))
def test_kv_cache(ranks: Ranks, operations: tuple[list[Operation], list[Operation]]) -> None:
    assert_cached(ranks, operations)


@pytest.mark.deliberate_break
def test_a_cache_that_is_read_by_the_wrong_table_is_found(ranks: Ranks) -> None:
    mine: list[Operation] = [("append", 0, 3), ("append", 1, 3)]
    theirs: list[Operation] = [("append", 1, 3), ("append", 0, 3)]
    with pytest.raises(AssertionError, match=r"^rank 0 read a wrong sequence 1 of rank 1"):
        assert_cached(ranks, [mine, theirs], own_tables=True)
