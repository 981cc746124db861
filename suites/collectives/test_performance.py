"""Latency and bus bandwidth of the collectives, held against the links' line rate and this hardware's baseline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_gpuperf import Context, GiB, KiB, Metric, MiB, Perf
from suites.collectives.programs import coalescing
from suites.collectives.programs.checking import IN_PLACE
from suites.collectives.programs.sweeping import OPERATIONS, at_sizes, of_size
from suites.collectives.reference import Collective


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


def race_of_many(perf: Perf, optimized: Callable[..., Any], *, quick: bool = False) -> None:
    """One call for each of many small tensors against another way, from which the same sums come out.

    Args:
        perf: of the test.
        optimized: the other way.
        quick: whether it is over in a fraction of the calls' time. Between thousands of calls a host is often late for
            it, so it is timed once more by itself.
    """
    count = perf.sized(MANY, smoke=4)
    members = tuple(range(perf.world_size))
    case = Collective(name="all_reduce", numel=count * NUMEL, dtype=torch.float32, seed=1, members=members)

    def verify(ctx: Context, parts: list[torch.Tensor], steps: int) -> None:
        case.assert_right(ctx.rank, torch.cat(parts), steps=steps)

    pair = perf.compare(
        baseline=coalescing.one_by_one, optimized=optimized, verify=verify, collective=case, count=count
    )
    alone = perf.measure(optimized, verify=verify, collective=case, count=count) if quick else pair.optimized
    perf.check(time=alone.time)
    # One by one is the host's time: speedups of launches were 2 to 16-fold apart.
    perf.show(speedup=pair.speedup, one_by_one=pair.baseline.time)


@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8, largest=True)
@pytest.mark.parametrize("way", [coalescing.coalesced, coalescing.flat], ids=["coalesced", "flat"])
def test_many_small(perf: Perf, way: Callable[..., Any]) -> None:
    race_of_many(perf, way, quick=True)


@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8, device="cuda", largest=True)
def test_many_small_in_a_graph(perf: Perf) -> None:
    race_of_many(perf, coalescing.in_a_graph)


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
