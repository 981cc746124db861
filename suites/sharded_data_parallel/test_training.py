"""Clipping and scaling look at all shards: training is that of one device with all ranks' rows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.func import functional_call

from pytest_gpuperf import Ranks
from suites.sharded_data_parallel.programs import training
from suites.shared.comparison import assert_same
from suites.shared.course import (
    BEYOND,
    MAX_NORM,
    SCALE,
    Course,
    assert_each_has,
    clipped_course,
    clipped_value_course,
    scaled_course,
)

pytestmark = pytest.mark.ranks(2, 3)

COURSE = Course(seed=1)
MAX_VALUE = 0.0625
"""Beyond which some elements of gradients are, on both sides."""
NORM_TYPES = (1.0, 2.0, math.inf)


of_dtypes = pytest.mark.parametrize("narrow", [False, True], ids=["of one dtype", "of two dtypes"])


@of_dtypes
def test_clipping(ranks: Ranks, narrow: bool) -> None:
    course = replace(COURSE, narrow=narrow)
    for max_norm in (MAX_NORM, BEYOND):
        expected = clipped_course(course, ranks.world_size, max_norm)
        assert_each_has(ranks.run(training.clipped, course=course, max_norm=max_norm), expected, course.rounding)


@of_dtypes
def test_clipping_by_value(ranks: Ranks, narrow: bool) -> None:
    course = replace(COURSE, narrow=narrow)
    expected = clipped_value_course(course, ranks.world_size, MAX_VALUE, NORM_TYPES)
    expected |= {f"{name}, one by one": value for name, value in expected.items() if name.endswith("-norm")}
    got = ranks.run(training.clipped_by_value, course=course, most=MAX_VALUE, norm_types=NORM_TYPES)
    assert_each_has(got, expected, course.rounding)


@of_dtypes
def test_one_shard_that_overflows_makes_all_skip_the_step(ranks: Ranks, narrow: bool) -> None:
    # Steps 1 and 2 begin with equal parameters, so only the fourth step needs those that the one before it has changed.
    course = replace(COURSE, narrow=narrow, steps=4)
    expected = scaled_course(course, ranks.world_size)
    assert_each_has(ranks.run(training.scaled, course=course), expected, course.rounding)


@pytest.mark.ranks(4)
def test_a_pair_that_overflows_skips_the_step_by_itself(ranks: Ranks) -> None:
    """After the skipped step, the pair starts its count of good steps again."""
    skipped = {"value": torch.full((2,), -1.0), "scales": torch.tensor([SCALE, SCALE / 2, SCALE / 2])}
    taken = {"value": torch.full((2,), -2.0), "scales": torch.tensor([SCALE, 2 * SCALE, 2 * SCALE])}
    assert_same(ranks.run(training.scaled_in_pairs, wrong=(1, 1), steps=3), [skipped, skipped, taken, taken])


def test_a_state_that_replaces_the_parameters(ranks: Ranks) -> None:
    """Three ranks divide the last layer's rows, so that its shards are the state's own tensors."""
    network = COURSE.network()
    x = [COURSE.batch(rank, 0)[0] for rank in range(ranks.world_size)]
    twice = {name: 2 * value for name, value in network.state_dict().items()}
    with torch.no_grad():
        expected = [{"before": network(rows), "after": functional_call(network, twice, (rows,))} for rows in x]
    assert_same(ranks.run(training.replaced, course=COURSE), expected, COURSE.rounding)


def test_one_infinite_shard_is_refused_on_all_ranks(ranks: Ranks) -> None:
    for wrong in (-1, 0, ranks.world_size - 1):
        got = ranks.run(training.refuses, course=COURSE, wrong=wrong)
        assert got == [wrong >= 0] * ranks.world_size, f"rank {wrong} has an infinite gradient, and {got} refuse it"
