"""Latency and bus bandwidth of the collectives, held against the links' line rate and this hardware's baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from pytest_gpuperf import Context, GiB, KiB, Metric, MiB, Perf
from suites.collectives.programs import coalescing
from suites.collectives.programs.checking import IN_PLACE
from suites.collectives.programs.sweeping import OPERATIONS, at_sizes, of_size
from suites.collectives.reference import Collective
from suites.shared.step import Step


def arrived(case: Collective) -> Callable[[Context, torch.Tensor, int], None]:
    """Whether each rank holds the right result, at the size that is timed."""

    def verify(ctx: Context, output: torch.Tensor, steps: int) -> None:
        case.assert_right(ctx.rank, output, steps=steps)
        if case.name not in IN_PLACE:
            output.zero_()  # a later step must write it anew

    return verify


@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8)
@pytest.mark.parametrize("nbytes", [KiB, 64 * MiB, GiB], ids=["1KiB", "64MiB", "1GiB"])
@pytest.mark.parametrize("op", OPERATIONS)
def test_bus_bandwidth(perf: Perf, op: str, nbytes: int) -> None:
    nbytes = perf.sized(nbytes, smoke=KiB)
    case = of_size(op, nbytes, perf.world_size)
    program, _ = OPERATIONS[op]
    timing = perf.measure(program, verify=arrived(case), collective=case)
    perf.check(busbw=timing.busbw(op, nbytes))
    perf.show(time=timing.time)  # the same figure, told otherwise: a second verdict would say nothing new


@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8)
@pytest.mark.parametrize("op", OPERATIONS)
def test_curve(perf: Perf, op: str) -> None:
    sizes = [2**power for power in range(8, perf.sized(31, smoke=12))]

    def verify(ctx: Context, output: torch.Tensor, steps: int, nbytes: int) -> None:
        arrived(of_size(op, nbytes, ctx.world_size))(ctx, output, steps)

    swept = perf.sweep(at_sizes, sizes=sizes, op=op, verify=verify, collective=op)
    perf.check(**swept.figures)
    perf.show(half_size=Metric(swept.half_size, "B", "lower"))


MANY, NUMEL = 2048, 1024
"""Tensors, and float32 elements of each: 4 KiB."""
ONE_BY_ONE = "one by one"
WAYS: Mapping[str, Callable[..., Any]] = {
    ONE_BY_ONE: coalescing.one_by_one,
    "coalesced": coalescing.coalesced,
    "flat": coalescing.flat,
    "graph": coalescing.in_a_graph,
}


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """All of them; no tensors to those who compare what steps return, who get the first one."""

    tensors: list[torch.Tensor]


def many_small(ctx: Context, *, way: str, collective: Collective, count: int) -> Step[tuple[torch.Tensor, Parts]]:
    """Sums of many small tensors in one of these ways; without a GPU there is no graph, but the calls themselves."""
    way = ONE_BY_ONE if way == "graph" and ctx.device.type != "cuda" else way
    summed: Step[list[torch.Tensor]] = WAYS[way](ctx, collective=collective, count=count)

    def step() -> tuple[torch.Tensor, Parts]:
        parts = summed()
        return parts[0], Parts(parts)

    return step


@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8, largest=True)
def test_many_small(perf: Perf) -> None:
    """A call for each of many small tensors, and what sums them in fewer.

    The group call and the flat buffer are judged. The other two launch thousands of collectives. Hosts are often late
    there, and times of launches were up to 16-fold apart.
    """
    count = perf.sized(MANY, smoke=4)
    members = tuple(range(perf.world_size))
    case = Collective(name="all_reduce", numel=count * NUMEL, dtype=torch.float32, seed=1, members=members)

    def verify(ctx: Context, output: tuple[torch.Tensor, Parts], steps: int) -> None:
        case.assert_right(ctx.rank, torch.cat(output[1].tensors), steps=steps)

    ways = [way for way in WAYS if not (perf.smoke and way == "graph")]
    found = perf.search(
        many_small,
        configurations={way: {"way": way} for way in ways},
        name="ways",
        verify=verify,
        collective=case,
        count=count,
    )
    times = {trial.name: found.speed(trial) for trial in found.trials}
    perf.check(coalesced=times["coalesced"], flat=times["flat"])
    perf.show(
        **{
            f"gain_of_{way}": Metric(times[ONE_BY_ONE].value / time.value, "x", "higher")
            for way, time in times.items()
            if way != ONE_BY_ONE
        }
    )


@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8, device="cuda")
@pytest.mark.parametrize("op", OPERATIONS)
def test_bytes_over_nvlink(perf: Perf, op: str) -> None:
    """A large collective moves no more than its formula asks for; a protocol that sends flags beside data does."""
    nbytes = perf.sized(256 * MiB, smoke=KiB)
    case = of_size(op, nbytes, perf.world_size)
    program, _ = OPERATIONS[op]
    readings = perf.configured(window=0.3).meter(program, verify=arrived(case), collective=case)
    traffic = readings.traffic(op, nbytes)
    if traffic is None:
        pytest.skip("NVML counts no bytes over the links of these GPUs")
    perf.check(traffic=traffic)
    if readings.energy is not None:
        perf.show(energy=readings.energy)  # the whole board's, and so another one on each machine
