"""A step of training that is captured as a CUDA graph, and replayed, trains as one device with all ranks' rows does."""

from __future__ import annotations

import pytest

from pytest_gpuperf import Ranks
from suites.data_parallel.programs import graphs
from suites.data_parallel.reference import adam_course
from suites.shared.course import Course, assert_each_has
from suites.shared.step import WARM_UPS

COURSE = Course(seed=1)
RATES = (0.125, 0.5, 0.25, 0.0625)
"""The learning rates of the steps; no two are alike, and float32 has them all."""


def taken(ranks: Ranks, *, graph: bool) -> set[int]:
    """Compares each step; returns how often Python went through one."""
    told = ranks.run(graphs.train, course=COURSE, rates=RATES, graph=graph)
    expected = adam_course(COURSE, ranks.world_size, RATES, betas=graphs.BETAS, eps=graphs.EPS)
    assert_each_has([results for results, _ in told], expected)
    return {count for _, count in told}


@pytest.mark.ranks(2, 3)
def test_the_step_as_it_is(ranks: Ranks) -> None:
    assert taken(ranks, graph=False) == {WARM_UPS + len(RATES)}


@pytest.mark.ranks(2, 4, 8, device="cuda")
def test_the_step_as_a_graph(ranks: Ranks) -> None:
    """Every step copies another batch and another learning rate; Python goes through none of them any more."""
    assert taken(ranks, graph=True) == {WARM_UPS + 1}
