"""Every way that is raced attends as one device does, whatever tokens the ranks hold."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pytest_gpuperf import Context, Infeasible, Ranks
from suites.context_parallel.programs import racing
from suites.context_parallel.programs.attention import Layout
from suites.context_parallel.reference import one_device
from suites.shared.comparison import assert_same, assert_unlike
from suites.shared.step import Tensors
from suites.shared.traffic import messages_of

SIZES = racing.Sizes(heads=8, kv_heads=4, features=4, dtype=torch.float64)
TOKENS = 48
STEPS = 2
ROUNDED = 1e-5  # of float32 numbers; the arithmetic is float64

WAYS: list[tuple[racing.Kind, Layout]] = [
    ("ring by hand", "contiguous"),
    ("ring by hand", "head-tail"),
    ("all-gather", "contiguous"),
    ("all-gather", "head-tail"),
    ("Ulysses", "contiguous"),
]


def steps(ctx: Context, *, way: racing.Kind, layout: Layout) -> list[tuple[Tensors, Tensors]]:
    """What each step returns, and what one device says. The flash kernel has no float64."""
    # Heads of keys that 3 ranks divide as well.
    sizes = dataclasses.replace(SIZES, heads=24, kv_heads=12, features=2)
    step = racing.train(ctx, way=way, layout=layout, sizes=sizes, length=TOKENS, seed=1, flash=False)
    return [(step(), one_device(ctx, sizes, TOKENS, 1, number)) for number in range(1, STEPS + 1)]


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize(("way", "layout"), WAYS)
def test_ways_attend_as_one_device(ranks: Ranks, way: racing.Kind, layout: Layout) -> None:
    results = ranks.run(steps, way=way, layout=layout)
    for number in range(STEPS):
        got, expected = zip(*(of_rank[number] for of_rank in results), strict=True)
        assert_same(got, expected, ROUNDED)


SENDS: dict[racing.Kind, set[str]] = {"ring by hand": {"send"}, "Ulysses": {"all_to_all"}}
"""What a way's own messages are; to all of them comes the sum that puts the rows together."""


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("way", "layout"), [each for each in WAYS if each[0] in SENDS])
def test_each_way_sends_as_its_name_says(ranks: Ranks, way: racing.Kind, layout: Layout) -> None:
    """All ways return the same: by their results nobody would see that two of them are one."""
    given = {"sizes": SIZES, "length": TOKENS, "seed": 1, "flash": False}
    results = ranks.run(messages_of, racing.train, way=way, layout=layout, **given)
    assert [{name for name, _ in messages} for messages in results] == [SENDS[way] | {"all_reduce"}] * ranks.world_size


@pytest.mark.parametrize("tokens", [1, 63, 64, 127, 128, 4096, 16384])
def test_rows_are_of_all_parts_of_the_sequence_and_of_the_last_token(tokens: int) -> None:
    """Half as many as are asked for at least, and twice as many at most; an odd number of tokens apart."""
    rows = racing.rows_of(tokens)
    assert rows[-1] == tokens - 1
    assert min(tokens, racing.ROWS // 2) <= len(rows) <= 2 * racing.ROWS
    strides = set(rows.diff().tolist())
    assert len(strides) <= 1
    assert all(stride % 2 for stride in strides)


def test_batches_and_tensors_are_unlike() -> None:
    """With equal batches a step that takes the first one's keys again would be right."""
    batches = racing.drawn(dataclasses.replace(SIZES, kv_heads=SIZES.heads), 16, 1, torch.device("cpu"))
    assert len(batches) == racing.BATCHES > 1
    assert_unlike({f"{name} {number}": of for number, each in enumerate(batches) for name, of in each.items()})


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"way": "Ulysses", "sizes": dataclasses.replace(SIZES, kv_heads=1)}, "1 heads of keys make no 2 equal parts"),
        ({"layout": "head-tail", "length": 46}, "a sequence of 46 tokens cannot be split over 2 ranks"),
    ],
)
def test_what_the_ranks_do_not_divide_cannot_run(ranks: Ranks, changes: dict[str, Any], why: str) -> None:
    usual = {"way": "all-gather", "layout": "contiguous", "sizes": SIZES, "length": TOKENS, "seed": 1}
    with pytest.raises(Infeasible, match=why):
        ranks.run(racing.train, **(usual | changes))


@pytest.mark.ranks(2, device="cpu")
def test_torchs_ring_needs_a_gpu(ranks: Ranks) -> None:
    with pytest.raises(Infeasible, match="kernels for CUDA alone"):
        ranks.run(racing.train, way="ring", layout="contiguous", sizes=SIZES, length=TOKENS, seed=1)


@pytest.mark.parametrize("tokens", [64, 100])
def test_operations_are_those_that_the_mask_leaves(tokens: int) -> None:
    """As torch counts the products of attention written out, forward and backward, less those of masked scores."""
    given = racing.drawn(SIZES, tokens, 1, torch.device("cpu"))[0]
    query, key, value = (given[name].requires_grad_() for name in ("query", "key", "value"))
    sharing = SIZES.heads // SIZES.kv_heads
    key, value = (tensor.repeat_interleave(sharing, dim=1) for tensor in (key, value))
    seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    with FlopCounterMode(display=False) as counter:
        scores = (query @ key.mT).masked_fill(~seen, -torch.inf)
        (scores.softmax(-1) @ value).backward(given["grad"])
    left = counter.get_total_flops() * int(seen.sum()) / seen.numel()
    # Half of the scores are left, but for half of the diagonal.
    assert SIZES.flop(tokens) == pytest.approx(left, rel=1.01 / tokens)


def test_bytes_and_the_threshold_are_those_of_the_page() -> None:
    """By hand: 2 ranks of 24 tokens, keys and values of 4 heads of 4 numbers, queries and outputs of 8."""
    assert SIZES.gathered(48, 2) == 2 * 24 * (4 + 4) * 4 * 8
    assert SIZES.swapped(48, 2) == 2 * 12 * (8 + 4 + 4 + 8) * 4 * 8
    # Of 4 ranks each is sent what 3 others have, 12 tokens each; of its own 12 it sends 3 quarters of the heads.
    assert SIZES.gathered(48, 4) == 2 * 3 * 12 * (4 + 4) * 4 * 8
    assert SIZES.swapped(48, 4) == 2 * 12 * 3 * (8 + 4 + 4 + 8) // 4 * 4 * 8
    half = dataclasses.replace(SIZES, dtype=torch.bfloat16)
    # 100 tokens: 4 * 100 * 4 * 4 bytes at 1 B/s take as long as 2 * 100**2 * 8 * 4 FLOP at 100 FLOP/s.
    assert half.hidden_from(100.0, 1.0) == 100.0
    assert 2 * 100**2 * 8 * 4 / 100 == 4 * 100 * 4 * 4 / 1.0
