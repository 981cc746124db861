"""Clipping, scaling, masking, buffers, dropout and compiled steps do what one device does with all ranks' rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.data_parallel.programs import training
from suites.data_parallel.reference import valid_cross_entropy
from suites.shared.comparison import assert_close, assert_unlike
from suites.shared.course import (
    BEYOND,
    MAX_NORM,
    ROUNDING,
    Course,
    assert_each_has,
    clipped_course,
    mean_square,
    scaled_course,
    trained_course,
)
from suites.shared.step import Tensors

pytestmark = pytest.mark.ranks(2, 3)

COURSE = Course(seed=1)


def test_no_two_ranks_or_steps_have_the_same_rows() -> None:
    """Were they alike, a rank's own gradients, or those of the step before, would be right."""
    rows = {f"rank {rank}, step {step}": COURSE.batch(rank, step)[0] for rank in range(3) for step in range(3)}
    assert_unlike(rows)


of_dtypes = pytest.mark.parametrize("narrow", [False, True], ids=["of one dtype", "of two dtypes"])


@of_dtypes
def test_clipping(ranks: Ranks, narrow: bool) -> None:
    course = replace(COURSE, narrow=narrow)
    for max_norm in (MAX_NORM, BEYOND):
        expected = clipped_course(course, ranks.world_size, max_norm)
        assert_each_has(ranks.run(training.clipped, course=course, max_norm=max_norm), expected, course.rounding)


def test_an_optimizer_within_backward(ranks: Ranks) -> None:
    told = trained_course(COURSE, mean_square(COURSE, ranks.world_size))
    expected = {name: value for name, value in told.items() if "gradient" not in name}
    assert_each_has(ranks.run(training.in_backward, course=COURSE), expected)


@pytest.mark.parametrize("bare", [False, True], ids=["some on each rank", "none on one rank"])
def test_the_mean_is_of_all_valid_rows(ranks: Ranks, bare: bool) -> None:
    course = replace(COURSE, bare=bare)
    expected = trained_course(course, valid_cross_entropy(course, ranks.world_size))
    assert_each_has(ranks.run(training.of_valid_tokens, course=course), expected)


@of_dtypes
def test_one_rank_that_overflows_makes_all_skip_the_step(ranks: Ranks, narrow: bool) -> None:
    course = replace(COURSE, narrow=narrow)
    expected = scaled_course(course, ranks.world_size)
    assert_each_has(ranks.run(training.scaled, course=course), expected, course.rounding)


@pytest.mark.parametrize("used", [False, True], ids=["into a new one", "into one that has trained"])
def test_a_scaler_that_is_loaded_goes_on_as_the_saved_one(ranks: Ranks, used: bool) -> None:
    """It stops after the overflow, and one step and two steps into the three after which the scale grows."""
    course = replace(COURSE, steps=9)
    stops, interval = (1, 3, 5), 3
    expected = scaled_course(course, ranks.world_size, interval)
    results = ranks.run(training.scaled, course=course, growth_interval=interval, stops=stops, used=used)
    assert_each_has(results, expected, course.rounding)


def test_running_statistics_are_rank_0s_when_a_step_begins(ranks: Ranks) -> None:
    """Variance with Bessel's correction, momentum 1/2: see torch.nn.BatchNorm1d. Gradients are each rank's mean."""
    results = ranks.run(training.normalised, course=COURSE)
    weight, bias = (COURSE.network()[0].get_parameter(name).detach() for name in ("weight", "bias"))
    mean = variance = torch.zeros(()).double()
    variance = variance + 1
    for step in range(COURSE.steps):
        of_ranks = []
        for rank in range(ranks.world_size):
            hidden = COURSE.batch(rank, step)[0] @ weight.T + bias
            of_ranks.append(((mean + hidden.mean(0)) / 2, (variance + hidden.var(0)) / 2))
        for rank, (of_mean, of_variance) in enumerate(of_ranks):
            where = f"rank {rank}, step {step}"
            told = {name: value.cpu() for name, value in results[rank].items() if name.startswith(f"step {step}, ")}
            assert_close(told[f"step {step}, 1.running_mean"], of_mean, f"{where}, mean", rtol=ROUNDING, atol=ROUNDING)
            assert_close(
                told[f"step {step}, 1.running_var"], of_variance, f"{where}, variance", rtol=ROUNDING, atol=ROUNDING
            )
            assert int(told[f"step {step}, 1.num_batches_tracked"]) == step + 1
            for name in ("0.weight", "1.weight", "1.bias", "3.weight"):
                first = results[0][f"step {step}, {name}"].cpu()
                assert torch.equal(told[f"step {step}, {name}"], first), f"{where}: another {name} than rank 0's"
        mean, variance = of_ranks[0]
        weight, bias = (results[0][f"step {step}, 0.{name}"].cpu() for name in ("weight", "bias"))


def test_each_rank_and_step_has_a_mask_of_its_own(ranks: Ranks) -> None:
    results = ranks.run(training.dropped, course=COURSE)
    masks = {(rank, step): told[f"step {step}, mask"].cpu() for rank, told in enumerate(results) for step in range(3)}
    for index, (where, mask) in enumerate(masks.items()):
        assert 0 < mask.mean() < 1, f"rank and step {where}: all or none are dropped"
        for other, theirs in list(masks.items())[:index]:
            assert not torch.equal(mask, theirs), f"rank and step {where} have the mask of {other}"

    def loss(parameters: Tensors, step: int) -> torch.Tensor:
        losses = []
        for rank in range(ranks.world_size):
            hidden = torch.tanh(COURSE.batch(rank, step)[0] @ parameters["0.weight"].T + parameters["0.bias"])
            kept = masks[rank, step] * hidden / (1 - training.DROPPED)
            losses.append((kept @ parameters["2.weight"].T + parameters["2.bias"]).square().mean())
        return torch.stack(losses).mean()

    # In the program dropout stands before the last layer, which is its number 3.
    expected = {name.replace(", 2.", ", 3."): value for name, value in trained_course(COURSE, loss).items()}
    assert_each_has(results, expected)


@pytest.mark.ranks(2)
def test_a_compiled_step(ranks: Ranks) -> None:
    # Without code of its own: what is to be seen is whether the graphs reduce each gradient once.
    results: list[Any] = ranks.run(training.compiled, course=COURSE, backend="aot_eager")
    assert_each_has(results, trained_course(COURSE, mean_square(COURSE, ranks.world_size)))
