"""What a rank reads of the next one's cache is what that one appended."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Ranks
from suites.shared.comparison import assert_unlike
from suites.shared.step import once
from suites.shared.strategies import worlds
from suites.symmetric_memory.programs.kv_cache import Operation, kv_cache, new_tokens

pytestmark = pytest.mark.ranks(2, 3, nodes=1)

WHAT = ("append", "append", "free")
CACHE = {"sequences": 4, "pages": 6, "page_tokens": 3, "heads": 2, "features": 2}


# Appends, and frees of what may not be there yet: ``after`` leaves those out. An operation is one drawn number:
# lists of tuples take hypothesis longer to draw than the ranks to run.
cache_operations = st.lists(
    st.integers(0, 3 * 4 * 7 - 1).map(lambda n: (WHAT[n % 3], n // 3 % 4, n // 12 + 1)), max_size=6
)


def test_no_two_tokens_are_alike() -> None:
    """Neither those of two ranks, of two sequences or of two places, nor keys and values."""
    places = [(rank, sequence, start) for rank in range(2) for sequence in range(2) for start in (0, 3)]
    tokens = {str(place): new_tokens(*place, 3, heads=2, features=2) for place in places}
    assert_unlike({f"{place}, {one}": part for place, parts in tokens.items() for one, part in enumerate(parts)})


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


def assert_cached(ranks: Ranks, operations: Sequence[Sequence[list[Operation]]]) -> None:
    """Each round has the right sequences and refusals; all operations that came before count."""
    degree = ranks.world_size
    rounds: list[list[list[Operation]]] = []
    models: list[list[tuple[dict[int, torch.Tensor], list[int]]]] = []
    before: list[list[Operation]] = [[] for _ in range(degree)]
    for of_ranks in operations:
        after_all = [after(rank, [*before[rank], *of_ranks[rank]]) for rank in range(degree)]
        rounds.append([kept[len(before[rank]) :] for rank, (kept, _, _) in enumerate(after_all)])
        models.append(
            [
                (held, [index - len(before[rank]) for index in refused if index >= len(before[rank])])
                for rank, (_, held, refused) in enumerate(after_all)
            ]
        )
        before = [kept for kept, _, _ in after_all]
    for rank, found in enumerate(ranks.run(once, kv_cache, operations=rounds, **CACHE)):
        for number, (read, refused) in enumerate(found):
            peer, where = (rank + 1) % degree, f"rank {rank}, round {number}"
            held = models[number][peer][0]
            assert set(read) == set(held), f"{where}: read sequences {sorted(read)}, not {sorted(held)}"
            for name, tokens in held.items():
                assert torch.equal(read[name], tokens), f"{where}: a wrong sequence {name} of rank {peer}"
            assert refused == models[number][rank][1], f"{where}: refused operations {refused}"


@given(data=st.data(), rounds=st.integers(1, 3))
def test_kv_cache(ranks: Ranks, data: st.DataObject, rounds: int) -> None:
    world = data.draw(worlds(ranks))
    of_ranks = st.lists(cache_operations, min_size=world.world_size, max_size=world.world_size)
    assert_cached(world, [data.draw(of_ranks) for _ in range(rounds)])


def test_pages_of_an_append_that_is_refused_can_be_taken(ranks: Ranks) -> None:
    """Five of six pages are taken, three more are refused, and then the last one is taken."""
    operations: list[Operation] = [("append", 0, 15), ("append", 1, 9), ("append", 2, 3)]
    assert_cached(ranks, [[operations] * ranks.world_size])
