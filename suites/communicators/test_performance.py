"""Seconds that a communicator takes to make, to use and to take down, by how it is made and by the number of ranks."""

from __future__ import annotations

import statistics

import pytest

from pytest_gpuperf import Metric, Perf, Ranks
from suites.communicators import programs

pytestmark = [pytest.mark.perf, pytest.mark.depends("host")]

NUMBER = 2  # to destroy one takes 0.51 s, see docs/suites/communicators.md


def judge(perf: Perf, ranks: Ranks, making: programs.Making) -> None:
    """Each stage as long as it takes the slowest rank; the median over communicators."""
    told = ranks.run(programs.lives, making=making, number=perf.sized(NUMBER, smoke=1), seed=1)
    figures = {}
    for stage, slowest in programs.of_slowest([seconds for seconds, _ in told]).items():
        name = stage.replace(" ", "_")
        figures[name] = Metric(statistics.median(slowest), "s", "lower", samples=len(slowest), clock="host")
    perf.check(**{name: figure for name, figure in figures.items() if name != "next_use"})
    # What reuse costs instead: a collective of 1 KiB with the host's wait for it.
    perf.show(next_use=figures["next_use"])


@pytest.mark.ranks(2, 4, 8)
@pytest.mark.parametrize("making", [programs.lazily, programs.eagerly], ids=["lazily", "eagerly"])
def test_new_groups(perf: Perf, ranks: Ranks, making: programs.Making) -> None:
    judge(perf, ranks, making)


@pytest.mark.ranks(2, 4, 8, device="cuda")
def test_split_groups(perf: Perf, ranks: Ranks) -> None:
    judge(perf, ranks, programs.split)
