"""Bus bandwidth of the collectives, held against the links' line rate and this hardware's baseline."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pytest_gpuperf import Context, GiB, KiB, MiB, Perf
from suites.collectives.programs import plain
from suites.collectives.programs.checking import IN_PLACE
from suites.collectives.reference import Collective
from suites.shared.step import Step

DTYPE = torch.bfloat16

# Each operation's program, and whether nccl-tests' size S is that of all ranks' shares together.
OPERATIONS: dict[str, tuple[Callable[..., Step[torch.Tensor]], bool]] = {
    "all_reduce": (plain.all_reduce, False),
    "all_gather": (plain.all_gather, True),
    "reduce_scatter": (plain.reduce_scatter, True),
    "all_to_all": (plain.all_to_all, True),
    "send_recv": (plain.send_recv, False),
}


def of_size(op: str, nbytes: int, world_size: int) -> Collective:
    """The one that moves what nccl-tests calls size S."""
    _, divided = OPERATIONS[op]
    numel = nbytes // DTYPE.itemsize // (world_size if divided else 1)
    return Collective(name=op, numel=numel, dtype=DTYPE, seed=1, members=tuple(range(world_size)))


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
