"""No collective goes uncounted: bytes are those that a rank gave to it, and what cannot be counted is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from pytest_gpuperf import Context, Ranks
from suites.data_parallel.traffic import Traffic

NUMEL = 6


def numbers(ctx: Context, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Of this rank."""
    return torch.full((NUMEL,), ctx.rank, dtype=dtype, device=ctx.device)


def counted(ctx: Context) -> dict[str, int]:
    """Each collective that is counted, once; and some of what moves no data."""
    x = numbers(ctx)
    whole = torch.empty(NUMEL * ctx.world_size, device=ctx.device)
    with Traffic() as traffic:
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        dist.all_gather_into_tensor(whole, x)
        dist.reduce_scatter_tensor(x, whole)
        if ctx.rank == 0:
            dist.send(x, 1)
        if ctx.rank == 1:
            dist.recv(x, 0)
        dist.barrier()
    return dict(traffic.bytes)


@pytest.mark.ranks(2)
def test_each_collective_is_counted_at_its_larger_tensor(ranks: Ranks) -> None:
    """float32 takes 4 bytes; gathers and scatters count what all ranks have together."""
    part, whole = NUMEL * 4, NUMEL * 4 * ranks.world_size
    of_all = {"all_reduce": part, "broadcast": part, "all_gather": whole, "reduce_scatter": whole}
    assert ranks.run(counted) == [of_all | {"send": part}, of_all]


def gather_in_a_list(ctx: Context) -> None:
    dist.all_gather([numbers(ctx) for _ in range(ctx.world_size)], numbers(ctx))


def all_to_all(ctx: Context) -> None:
    dist.all_to_all_single(numbers(ctx), numbers(ctx))


def functional_all_reduce(ctx: Context) -> None:
    functional.all_reduce(numbers(ctx), "sum", ctx.group)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("collective", "name"),
    [
        (gather_in_a_list, r"c10d\.allgather_"),
        (all_to_all, r"c10d\.alltoall_base_"),
        (functional_all_reduce, r"_c10d_functional\.all_reduce"),
    ],
    ids=["all_gather", "all_to_all", "functional"],
)
def test_a_collective_that_cannot_be_counted_is_refused(
    ranks: Ranks, collective: Callable[[Context], None], name: str
) -> None:
    def program(ctx: Context) -> None:
        with Traffic():
            collective(ctx)

    with pytest.raises(NotImplementedError, match=f"^{name} is a collective whose bytes are not counted"):
        ranks.run(program)
