"""GPUs at work, for as long as ``--soak SECONDS`` says: no error is counted, none is odd; the rate of the slowest."""

from __future__ import annotations

import time

import pytest
import torch

from pytest_gpuperf import Metric, Perf, Ranks
from suites.health import reference
from suites.health.programs import straining as programs

pytestmark = [pytest.mark.perf, pytest.mark.ranks(1, 2, 4, 8, largest=True), pytest.mark.depends("gpu")]

WIDTH, DTYPE = 8192, torch.bfloat16
SECONDS, SLICE = 2.0, 60.0


def test_under_load(perf: Perf, ranks: Ranks, soak_seconds: float) -> None:
    width, seconds = perf.sized(WIDTH, smoke=16), perf.sized(max(SECONDS, soak_seconds), smoke=0.05)
    before, ends = perf.health(), time.monotonic() + seconds
    while True:
        strains = ranks.run(programs.load, width=width, dtype=DTYPE, seconds=min(seconds, SLICE))
        told = list(reference.complaints(strains))
        assert not told, "\n".join(told)
        if time.monotonic() >= ends:
            break
    after = perf.health()
    risen = {rank: now.risen(then) for rank, (now, then) in enumerate(zip(after, before, strict=True))}
    assert not any(risen.values()), f"errors that were counted under load, by rank: {risen}"
    by_rank = reference.rates(strains)
    odd = list(reference.odd_gpus(by_rank, after))
    assert perf.smoke or not odd, "\n".join(odd)
    rate = 2 * width**3 * min(by_rank)
    perf.check(
        slowest_gpu=Metric(
            rate,
            "FLOP/s",
            "higher",
            samples=len(strains[0].seconds),
            limit=perf.peak(DTYPE),
            limit_name="matrix units",
            plain=True,
            clock="cuda_event",
        )
    )
    told_heat = {f"kelvin_of_{rank}": now.kelvin for rank, now in enumerate(after) if now.kelvin is not None}
    shown = {name: Metric(kelvin, "K", "lower") for name, kelvin in told_heat.items()}
    shown |= {f"power_of_{rank}": Metric(now.watts, "W", "lower") for rank, now in enumerate(after) if now.watts}
    if shown:
        perf.show(**shown)
