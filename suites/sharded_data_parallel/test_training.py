"""Clipping and scaling look at all shards: training is that of one device with all ranks' rows."""

from __future__ import annotations

import pytest

from pytest_gpuperf import Ranks
from suites.sharded_data_parallel.programs import training
from suites.shared.course import BEYOND, MAX_NORM, Course, assert_each_has, clipped_course, scaled_course

pytestmark = pytest.mark.ranks(2, 3)

COURSE = Course(seed=1)


def test_clipping(ranks: Ranks) -> None:
    for max_norm in (MAX_NORM, BEYOND):
        expected = clipped_course(COURSE, ranks.world_size, max_norm)
        assert_each_has(ranks.run(training.clipped, course=COURSE, max_norm=max_norm), expected)


def test_one_shard_that_overflows_makes_all_skip_the_step(ranks: Ranks) -> None:
    assert_each_has(ranks.run(training.scaled, course=COURSE), scaled_course(COURSE, ranks.world_size))
