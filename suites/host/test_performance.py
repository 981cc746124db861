"""How fast each NUMA node's memory is, and how many of the host's cores are there for this run."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_gpuperf import KiB, Matrix, Metric, MiB, Perf, Ranks
from suites.host import reference
from suites.host.programs import cores, memory
from suites.host.programs.chase import NoChase, chase_of
from suites.shared.chances import bounds_of_median

pytestmark = [pytest.mark.perf, pytest.mark.depends("host")]

SHARE, CORES_PER_GPU, EVENNESS = 0.85, 2.0, 0.7
"""What a healthy host has at least."""
EACH = 2_000_000
"""Loads of a step within the first cache: some milliseconds."""


def metric(samples: Sequence[float], unit: str, better: Any = "higher", **given: Any) -> Metric:
    """The median of these samples, on the host's clock."""
    return Metric(statistics.median(samples), unit, better, samples=len(samples), clock="host", **given)


def judge(samples: Sequence[float], at_least: float) -> Metric:
    """The median of these ratios, which fails if it is surely below what is asked for."""
    return metric(samples, "x", interval=bounds_of_median(samples), at_least=at_least)


@pytest.fixture
def own_cores() -> dict[str, Any]:
    """The cores that this process may use, and on which host; the test is skipped if no chase runs there."""
    try:
        chase_of()
    except NoChase as reason:
        pytest.skip(str(reason))
    return {"cores": os.sched_getaffinity(0), "host": platform.node()}


@pytest.mark.ranks(1, 2, 4, 8, nodes=1, largest=True)
def test_cores(perf: Perf, ranks: Ranks, own_cores: dict[str, Any]) -> None:
    seconds, each = perf.sized(1.0, smoke=0.01), perf.sized(EACH, smoke=100)
    times, *_ = ranks.run(cores.spinning, seconds=seconds, each=each, **own_cores)
    assert times is not None
    for_each_gpu = [number / perf.world_size for number in reference.whole_cores(times)]
    perf.check(
        share=judge(reference.shares(reference.speeds(times)), SHARE),
        cores_per_gpu=judge(for_each_gpu, CORES_PER_GPU),
    )
    perf.show(allowed_cores=Metric(len(times), "x", "higher"))


@pytest.mark.ranks(1, nodes=1)
def test_memory(perf: Perf, ranks: Ranks, own_cores: dict[str, Any]) -> None:
    (found,) = ranks.run(
        memory.memory,
        nbytes=perf.sized(256 * MiB, smoke=64 * KiB),
        steps=perf.sized(50_000, smoke=100),
        samples=5,
        least=perf.sized(8 * MiB, smoke=4 * KiB),
        seconds=perf.sized(0.3, smoke=0.01),
        **own_cores,
    )
    own = [metric(row[node], "s", "lower") for node, row in enumerate(found.latencies)]
    rates = [reference.rates(*of_node) for of_node in zip(found.copies, found.part, strict=True)]
    copies = [metric(samples, "B/s") for samples in rates]
    perf.check(
        latency=max(own, key=lambda figure: figure.value), bandwidth=min(copies, key=lambda figure: figure.value)
    )
    perf.show(**{f"latency_of_{name}": figure for name, figure in zip(found.nodes, own, strict=True)})
    perf.show(**{f"bandwidth_of_{name}": figure for name, figure in zip(found.nodes, copies, strict=True)})
    if len(found.nodes) > 1:
        medians = [[statistics.median(samples) for samples in row] for row in found.latencies]
        perf.show(latencies=Matrix.of(medians, "s", "lower", [f"node {name}" for name in found.nodes]))
        perf.check(evenness=judge(reference.evenness(rates), EVENNESS))
