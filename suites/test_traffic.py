"""No collective goes unseen: bytes are those that a rank gave to it, and what cannot be counted is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel

from pytest_gpuperf import Context, Ranks
from suites.shared.traffic import Call, Traffic, ring_bytes, sizes

pytestmark = pytest.mark.ranks(2, 3)

NUMEL = 6
PART = NUMEL * 4  # bytes of float32


def numbers(ctx: Context, parts: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Elements that are all this rank's number."""
    return torch.full((parts * NUMEL,), ctx.rank, dtype=dtype, device=ctx.device)


def through_c10d(ctx: Context) -> None:
    """Each collective that is counted, once, and some of what moves no data."""
    x, whole = numbers(ctx), numbers(ctx, ctx.world_size)
    dist.all_reduce(x)
    dist.broadcast(x, 0)
    dist.all_gather_into_tensor(whole, x)
    dist.reduce_scatter_tensor(x, whole)
    dist.all_to_all_single(torch.empty_like(whole), whole)
    if ctx.rank == 0:
        dist.send(x, 1)
    if ctx.rank == 1:
        dist.recv(x, 0)
    dist.barrier()


def functional_collectives(ctx: Context) -> None:
    """Calls each collective in its functional form, except those of two ranks.

    Results are waited for when they are used, which moves no data.
    """
    x, whole = numbers(ctx), numbers(ctx, ctx.world_size)
    for result in (
        functional.all_reduce(x, "sum", ctx.group),
        functional.broadcast(x, 0, ctx.group),
        functional.all_gather_tensor(x, 0, ctx.group),
        functional.reduce_scatter_tensor(whole, "sum", 0, ctx.group),
        functional.all_to_all_single(whole, None, None, ctx.group),
    ):
        result.sum()


def calls_of(ctx: Context, program: Callable[[Context], None]) -> list[Call]:
    """What the rank calls in it."""
    traffic = Traffic()
    with traffic:
        program(ctx)
    return traffic.calls


@pytest.mark.parametrize("program", [through_c10d, functional_collectives])
def test_each_collective_is_seen_with_what_it_is_given_and_its_larger_tensor(
    ranks: Ranks, program: Callable[[Context], None]
) -> None:
    """Gathers and scatters are counted with what all ranks have together."""
    whole = PART * ranks.world_size
    expected = [
        ("all_reduce", PART, PART),
        ("broadcast", PART, PART),
        ("all_gather", PART, whole),
        ("reduce_scatter", whole, whole),
        ("all_to_all", whole, whole),
    ]
    sends = [("send", PART, PART)] if program is through_c10d else []
    found = [[(call.name, call.given, call.size) for call in calls] for calls in ranks.run(calls_of, program)]
    assert found == [expected + sends] + [expected] * (ranks.world_size - 1)


@pytest.mark.parametrize("program", [through_c10d, functional_collectives])
def test_bytes_around_a_ring(ranks: Ranks, program: Callable[[Context], None]) -> None:
    """Twice (R - 1) parts in an all_reduce of R parts, and R - 1 in a half of it."""
    degree = ranks.world_size
    others = (degree - 1) * PART
    expected = {
        "all_reduce": 2 * others // degree,
        "broadcast": PART,
        "all_gather": others,
        "reduce_scatter": others,
        "all_to_all": others,
    }
    calls = ranks.run(calls_of, program)[-1]
    assert ring_bytes(calls, degree) == expected
    assert sizes(calls) == {call.name: call.size for call in calls}


def of_dtensors(ctx: Context) -> None:
    """A product of columns and rows is a sum over the ranks, which has to be had before what is not linear."""
    mesh = init_device_mesh(ctx.device.type, (ctx.world_size,))
    columns = DTensor.from_local(numbers(ctx).view(-1, 1), mesh, [Shard(1)])
    rows = DTensor.from_local(numbers(ctx).view(1, -1), mesh, [Shard(0)])
    torch.relu(columns @ rows)


def test_what_dtensors_call_is_seen(ranks: Ranks) -> None:
    expected = {"all_reduce": NUMEL * PART}
    assert [sizes(calls) for calls in ranks.run(calls_of, of_dtensors)] == [expected] * ranks.world_size


def of_unused_parameters(ctx: Context) -> list[Call]:
    """Whole numbers in two steps: which parameters were used, in each; how large buckets are, before the second."""
    module = DistributedDataParallel(nn.Linear(3, 2, device=ctx.device), find_unused_parameters=True)
    traffic = Traffic()
    with traffic:
        for _ in range(2):
            module(torch.ones(1, 3, device=ctx.device)).sum().backward()
    return traffic.calls


def test_bookkeeping_is_seen_and_not_counted(ranks: Ranks) -> None:
    for calls in ranks.run(of_unused_parameters):
        used = [call.given for call in calls if call.bookkeeping and call.name == "all_reduce"]
        assert used == [2 * 4] * 2  # an int32 for each parameter, in each step
        assert sizes(calls) == {"all_reduce": 2 * (3 * 2 + 2) * 4}


def of_whole_numbers(ctx: Context) -> None:
    """A program's own: float32 as int32 in a broadcast, say."""
    x = numbers(ctx)
    dist.broadcast(x.view(torch.int32), 0)
    dist.all_reduce(x.to(torch.int64))
    functional.all_reduce(x.to(torch.int32), "sum", ctx.group).sum()
    sizes = torch.ones(ctx.world_size, dtype=torch.int64, device=ctx.device)
    dist.all_to_all_single(torch.empty_like(sizes), sizes)


def test_whole_numbers_of_a_program_are_counted(ranks: Ranks) -> None:
    calls = ranks.run(calls_of, of_whole_numbers)[0]
    assert sizes(calls) == {"broadcast": PART, "all_reduce": 3 * PART, "all_to_all": 8 * ranks.world_size}


def gather_in_a_list(ctx: Context) -> None:
    dist.all_gather([numbers(ctx) for _ in range(ctx.world_size)], numbers(ctx))


def functional_all_reduce_of_several(ctx: Context) -> None:
    functional.all_reduce_coalesced([numbers(ctx), numbers(ctx)], "sum", ctx.group)


@pytest.mark.parametrize(
    ("program", "operator", "tensors"),
    [
        (gather_in_a_list, "c10d.allgather_", lambda world_size: world_size + 1),
        (functional_all_reduce_of_several, "_c10d_functional.all_reduce_coalesced", lambda _: 2),
    ],
    ids=["c10d", "functional"],
)
def test_a_collective_that_is_not_known_is_seen_and_refused(
    ranks: Ranks, program: Callable[[Context], None], operator: str, tensors: Callable[[int], int]
) -> None:
    """With all tensors that it is called with."""
    for calls in ranks.run(calls_of, program):
        assert ring_bytes(calls, ranks.world_size) == {operator: tensors(ranks.world_size) * PART}
        with pytest.raises(NotImplementedError, match=f"^{operator} is a collective whose bytes are not counted"):
            sizes(calls)
