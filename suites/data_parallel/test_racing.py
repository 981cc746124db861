"""All ways that are raced leave the mean of all rows' gradients, step by step."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pytest_gpuperf import Context, Ranks
from suites.data_parallel.programs import racing
from suites.data_parallel.reference import mean_gradients, mean_square_of_rows
from suites.shared.comparison import assert_in_float32, assert_same, assert_unlike
from suites.shared.step import Tensors

SIZES = racing.Sizes(layers=3, width=8, rows=4, dtype=torch.float64)
STEPS = 4  # the last one has the first batch again
ROUNDED = 1e-5  # of float32 numbers; the arithmetic is float64


def steps(ctx: Context, *, way: str) -> list[tuple[torch.Tensor, Tensors | None, Tensors]]:
    """What is compared, what the rank holds, and what one device has, of each step."""
    step = racing.train(ctx, way=way, sizes=SIZES, seed=1)
    found = []
    for number in range(1, STEPS + 1):
        common, held = step()
        found.append((common, held.gradients, mean_gradients(ctx, SIZES, 1, number)))
    return found


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("way", racing.WAYS)
def test_gradients_are_the_mean_over_all_rows(ranks: Ranks, way: str) -> None:
    results = ranks.run(steps, way=way)
    for number in range(STEPS):
        of_step = [rank[number] for rank in results]
        # DataParallel's gradients are in one process.
        holders = of_step[:1] if way == "DataParallel" else of_step
        assert_same([held for _, held, _ in holders if held is not None], [one for _, _, one in holders], ROUNDED)
        assert [held is None for _, held, _ in of_step] == [False] * len(holders) + [True] * (
            len(of_step) - len(holders)
        )
        sizes = [len(common) for common, _, _ in of_step]
        assert sizes[0] == sum(value.numel() for value in of_step[0][2].values())
        assert sizes[1:] == [0] * (ranks.world_size - 1)
    first, second = (results[0][number][2]["layer 0"] for number in range(2))
    assert not torch.allclose(first, second)  # a stale batch would be seen


@pytest.mark.ranks(1)
def test_each_rank_has_batches_of_its_own(ranks: Ranks) -> None:
    """With equal batches a rank's own gradients would be the mean, and no missing sum could be seen."""

    def drawn(ctx: Context) -> Tensors:
        return {
            f"rank {rank}, batch {number}": racing.batch_of(ctx, SIZES, rank, number)
            for rank in range(8)
            for number in range(racing.BATCHES)
        }

    assert_unlike(ranks.run(drawn)[0])


@pytest.mark.ranks(2)
def test_operations_and_bytes_are_those_of_a_step(ranks: Ranks) -> None:
    def counted(ctx: Context) -> tuple[int, int, int]:
        step = racing.train(ctx, way="staged replicas", sizes=SIZES, seed=1)
        with FlopCounterMode(display=False) as counter:
            step()
        weights = racing.perceptron(SIZES, 1, ctx.device).parameters()
        batch = racing.batch_of(ctx, SIZES, ctx.rank, 0)
        return int(counter.get_total_flops()), sum(weight.nbytes for weight in weights), batch.nbytes

    assert ranks.run(counted) == [(SIZES.flop, SIZES.gradients, SIZES.batch)] * ranks.world_size


def test_a_loss_of_16_bits_is_computed_in_float32() -> None:
    output = torch.randn(32, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert_in_float32(racing.loss_of_rows(output), mean_square_of_rows(output.double()), "loss")
