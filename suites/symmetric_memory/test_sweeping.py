"""Sums and messages are the same at every size, whoever moves the bytes, step after step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Context, Ranks
from suites.shared.bits import wrong_bits
from suites.shared.noted_calls import assert_in_turn
from suites.shared.places import assert_sum
from suites.shared.strategies import worlds
from suites.symmetric_memory.programs import sweeping
from suites.symmetric_memory.reference import crossover

ON_GPUS = ("sum_by_one_shot", "sum_by_two_shot", "ring_by_signals")
ANYWHERE = (
    "sum_by_nccl",
    "sum_by_gets",
    "ring_by_nccl",
    "ring_by_puts",
    "ring_by_gets",
    "ring_by_stores",
    "ring_by_loads",
)
IN_PLACE = ("sum_by_nccl", "sum_by_two_shot")


def verify(ctx: Context, name: str, output: torch.Tensor, steps: int, nbytes: int) -> None:
    """What a program's step leaves; what came around the ring is wiped, so that a later step must bring it anew."""
    assert output.nbytes == nbytes, f"rank {ctx.rank}, {name}: {output.nbytes} bytes, not {nbytes}"
    if name.startswith("sum"):
        taken = steps if name in IN_PLACE else 1
        assert_sum(output, ranks=ctx.world_size, steps=taken, where=f"rank {ctx.rank}, {name}")
        return
    wrong = wrong_bits(output, stream=(ctx.rank - 1) % ctx.world_size)
    assert not wrong, f"rank {ctx.rank}, {name}: {wrong} of {nbytes} bytes are wrong"
    output.zero_()


def in_turn(ctx: Context, name: str, sizes: list[int]) -> None:
    """Two steps of each size, compared on the ranks."""
    program: Any = getattr(sweeping, name)
    step_of = program(ctx, sizes=sizes)
    for nbytes in sizes:
        step = step_of(nbytes)
        for steps in (1, 2):
            output = step()
            ctx.barrier()  # what is wiped or read here is nobody's target meanwhile
            verify(ctx, name, output, steps, nbytes)
            ctx.barrier()


def test_sums_by_gets_read_from_one_rank_after_another() -> None:
    assert_in_turn(lambda ctx, allocate: sweeping.sum_by_gets(ctx, sizes=[16], allocate=allocate)(16), ranks=3)


@pytest.mark.parametrize(
    ("ours", "up_to"),
    [
        ((1.0, 1.0, 1.0), 64),
        ((1.0, 1.0, 9.0), 16),
        ((1.0, 9.0, 1.0), 4),  # faster again, but not up to there
        ((9.0, 1.0, 1.0), None),
        ((1.0, 3.0, 1.0), 4),  # as fast is not faster
    ],
)
def test_the_largest_size_up_to_which_a_way_is_faster(ours: tuple[float, ...], up_to: int | None) -> None:
    nccl, way = (SimpleNamespace(sizes=[4, 16, 64], seconds=seconds) for seconds in ((2.0, 3.0, 4.0), ours))
    assert crossover(nccl, way) == up_to  # type: ignore[arg-type]


@pytest.mark.ranks(2, 3, 4, nodes=1)
@pytest.mark.parametrize("name", ANYWHERE)
@given(data=st.data(), counts=st.lists(st.integers(1, 35_000), min_size=1, max_size=2, unique=True))
def test_every_size(ranks: Ranks, data: st.DataObject, name: str, counts: list[int]) -> None:
    # symm_mem's kernels move 4 bytes at least.
    data.draw(worlds(ranks)).run(in_turn, name, [4 * count for count in [*sorted(counts), 35_001]])


@pytest.mark.ranks(2, 4, 8, nodes=1, device="cuda", largest=True)
@pytest.mark.parametrize("name", ON_GPUS)
def test_every_size_on_gpus(ranks: Ranks, name: str) -> None:
    ranks.run(in_turn, name, [16, 4 * 35_001, 1 << 24])
