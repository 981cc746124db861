"""What is raced trains as one device does, and keeps what the formula says."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pytest_gpuperf import Context, Infeasible, Ranks
from suites.sequence_parallel.programs import racing
from suites.sequence_parallel.programs.block import Norm
from suites.sequence_parallel.reference import one_device
from suites.shared.comparison import assert_same, assert_unlike
from suites.shared.step import NUMBERS, Tensors, excerpt, spread

SIZES = racing.Sizes(layers=2, width=16, hidden=24, sequences=2, length=8, norm="layer", dtype=torch.float64)
ROUNDED = 1e-5  # of float32 numbers; the arithmetic is float64


def both(ctx: Context, *, plan: str, sizes: racing.Sizes) -> tuple[Tensors, Tensors]:
    """The second step's excerpt, and what one device says."""
    step = racing.forward_backward(ctx, plan=plan, sizes=sizes, seed=1)
    step()
    return step(), one_device(ctx, sizes, seed=1)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("plan", racing.PLANS)
def test_blocks_train_as_on_one_device(ranks: Ranks, plan: str) -> None:
    sizes = dataclasses.replace(SIZES, length=12)
    got, expected = zip(*ranks.run(both, plan=plan, sizes=sizes), strict=True)
    assert_same(got, expected, ROUNDED)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("plan", racing.PLANS)
def test_what_is_kept_for_backward_is_as_the_formula_says(ranks: Ranks, plan: str) -> None:
    """In bytes, exactly: of float32, whose norm keeps float32 on all devices."""
    sizes = dataclasses.replace(SIZES, dtype=torch.float32)
    kept = ranks.run(racing.kept_for_backward, plan=plan, sizes=sizes, seed=1)
    # Written out: 2 blocks of 16 tokens in all; 4 bytes for each of 16 features in and out of the norm, of 24 hidden
    # features, and of the norm's mean and deviation.
    degree = ranks.world_size
    share = degree if plan == "sequence" else 1
    assert kept == [2 * 16 * 4 * (16 + 2) // share + 2 * 16 * 4 * (16 + 24 // degree)] * degree
    assert kept == [sizes.kept(plan, degree)] * degree
    assert sizes.least_kept(degree) == 2 * 16 * 4 * (16 + 2 + 16 + 24) // degree < min(kept)


@pytest.mark.parametrize(("norm", "numbers"), [("layer", 2), ("rms", 1)])
def test_norms_of_16_bit_numbers_keep_float32(norm: Norm, numbers: int) -> None:
    """Written out: 2 blocks of 16 tokens in all; 2 bytes for each feature, 4 for each number that a norm keeps."""
    sizes = dataclasses.replace(SIZES, dtype=torch.bfloat16, norm=norm)
    for plan, share in {"tensor": 1, "sequence": 4}.items():
        assert sizes.kept(plan, 4) == 2 * 16 * (16 * 2 + numbers * 4) // share + 2 * 16 * (16 + 24 // 4) * 2
    assert sizes.least_kept(4) == 2 * 16 * ((16 + 16 + 24) * 2 + numbers * 4) // 4


@pytest.mark.ranks(1)
def test_operations_are_those_of_torchs_counter(ranks: Ranks) -> None:
    sizes = dataclasses.replace(SIZES, sequences=3)

    def counted(ctx: Context) -> int:
        with FlopCounterMode(display=False) as counter:
            one_device(ctx, sizes, seed=1)
        return int(counter.get_total_flops())

    assert ranks.run(counted) == [sizes.flop]


def test_no_two_blocks_are_alike() -> None:
    """With equal ones a gradient of another block would be right."""
    blocks, x, grad = racing.drawn(dataclasses.replace(SIZES, layers=3), 1, torch.device("cpu"))
    for name in blocks[0]:
        assert_unlike({f"{name} of block {index}": block[name] for index, block in enumerate(blocks)})
    assert_unlike({"input": x, "gradient": grad})


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        (dataclasses.replace(SIZES, hidden=25), "25 hidden features make no 2"),
        (dataclasses.replace(SIZES, length=7), "7 tokens of a sequence make no 2"),
    ],
)
def test_what_the_ranks_do_not_divide_cannot_run(ranks: Ranks, sizes: racing.Sizes, why: str) -> None:
    with pytest.raises(Infeasible, match=why):
        ranks.run(racing.forward_backward, plan="tensor", sizes=sizes, seed=1)


def test_an_excerpt_is_of_all_columns_and_in_units_of_the_usual_size() -> None:
    values = torch.arange(64 * NUMBERS, dtype=torch.float64).view(-1, 64) + 1
    columns = (spread(values) - 1).long() % 64
    assert set(columns.tolist()) == set(range(64))
    small, large = excerpt({"x": values / 1024}), excerpt({"x": values})
    assert torch.allclose(small["x"], large["x"])
    assert large["x, size"] - small["x, size"] == pytest.approx(math.log(1024))
    assert excerpt({"x": torch.zeros(3)})["x"].isnan().all()
