"""Bus bandwidth of the collectives, held against the links' line rate and this hardware's baseline."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pytest_gpuperf import GiB, KiB, MiB, Perf
from suites.collectives import programs
from suites.shared.step import Step

DTYPE = torch.bfloat16

# Each operation's program, and by how many ranks nccl-tests' size S is divided to give its ``shape``.
OPERATIONS: dict[str, tuple[Callable[..., Step[torch.Tensor]], bool]] = {
    "all_reduce": (programs.all_reduce, False),
    "all_gather": (programs.all_gather, True),
    "reduce_scatter": (programs.reduce_scatter, True),
    "all_to_all": (programs.all_to_all, True),
    "send_recv": (programs.send_recv, False),
}


@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8)
@pytest.mark.parametrize("nbytes", [KiB, 64 * MiB, GiB], ids=["1KiB", "64MiB", "1GiB"])
@pytest.mark.parametrize("op", OPERATIONS)
def test_bus_bandwidth(perf: Perf, op: str, nbytes: int) -> None:
    program, divided = OPERATIONS[op]
    numel = perf.sized(nbytes, smoke=KiB) // DTYPE.itemsize
    shape = (numel // perf.world_size if divided else numel,)
    timing = perf.measure(program, shape=shape, dtype=DTYPE, seed=1)
    perf.check(busbw=timing.busbw(op, numel * DTYPE.itemsize))
    perf.show(time=timing.time)  # the same figure, told otherwise: a second verdict would say nothing new


@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8, device="cuda")
@pytest.mark.parametrize("op", OPERATIONS)
def test_bytes_over_nvlink(perf: Perf, op: str) -> None:
    """A large collective moves no more than its formula asks for; a protocol that sends flags beside data does."""
    program, divided = OPERATIONS[op]
    numel = perf.sized(256 * MiB, smoke=KiB) // DTYPE.itemsize
    shape = (numel // perf.world_size if divided else numel,)
    readings = perf.configured(window=0.3).meter(program, shape=shape, dtype=DTYPE, seed=1)
    traffic = readings.traffic(op, numel * DTYPE.itemsize)
    if traffic is None:
        pytest.skip("NVML counts no bytes over the links of these GPUs")
    perf.check(traffic=traffic)
    if readings.energy is not None:
        perf.show(energy=readings.energy)  # the whole board's, and so another one on each machine
