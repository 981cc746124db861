"""Two steps that move the parameters, against the whole model's: the second begins where the first has ended.

The first is exact: what moves a weight of 1 or -1 is a whole number over a power of two. The second multiplies such
fractions layer after layer, more bits than a float64 holds, and is compared within its rounding.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_gpuperf import Context, Ranks
from suites.pipeline_parallel import programs
from suites.pipeline_parallel.programs import RUNNERS, Layers
from suites.pipeline_parallel.reference.model import DTYPE, Case, assert_trained_once, fixed, whole_model
from suites.shared.comparison import Results, assert_within
from suites.shared.step import Tensors

pytestmark = pytest.mark.ranks(2)

LEARNING_RATE = 2.0**-10  # moves weights by less than their size: what follows stays of the same size


def continued(given_case: Case, after: Tensors) -> Case:
    """The case with the parameters that a step has left."""
    stages: list[Layers] = [
        [
            (after[f"stage {index}.{2 * place}.weight"], after[f"stage {index}.{2 * place}.bias"])
            for place in range(len(layers))
        ]
        for index, layers in enumerate(given_case.stages)
    ]
    return given_case._replace(stages=stages)


def bounds(given_case: Case) -> Tensors:
    """How far rounding may take each result of a step.

    All of them are sums of products along paths through the model, and a path that N operations round is off by N u at
    most (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1), of the sum of the paths' magnitudes.
    That is what the model makes of magnitudes, with targets that are added instead of subtracted, in a step uphill.

    L layers of width n and a batch of B: forward rounds n + 1 times in each layer, backward n times, and multiplies by
    what forward has left, which has been rounded as often as what backward began with: L (3 n + 2). A loss and a
    gradient add up B n numbers at most; the difference, its square, the product, and the step are 4 more. Twice, since
    the reference rounds too.
    """
    layers = [layer for stage in given_case.stages for layer in stage]
    width = max(max(weight.shape) for weight, _ in layers)
    rounded = len(layers) * (3 * width + 2) + len(given_case.x) * width + 4
    magnitudes = given_case._replace(
        stages=[[(weight.abs(), bias.abs()) for weight, bias in stage] for stage in given_case.stages],
        x=given_case.x.abs(),
        target=-given_case.target.abs(),
    )
    unit = torch.finfo(DTYPE).eps / 2
    return {name: 2 * rounded * unit * size for name, size in whole_model(magnitudes, -LEARNING_RATE).items()}


def assert_trained_on(got: Results, given_case: Case) -> None:
    """The results of the second step, which begins with the case's parameters."""
    expected, bound = whole_model(given_case, LEARNING_RATE), bounds(given_case)
    for rank, results in enumerate(got):
        for name, tensor in results.items():
            assert_within(tensor, expected[name], bound[name], f"rank {rank}, {name}")
    assert sorted(name for results in got for name in results) == sorted(expected)


@pytest.mark.parametrize("schedule", RUNNERS)
def test_two_steps(ranks: Ranks, schedule: str) -> None:
    given_case = fixed(schedule, ranks.world_size)
    got = ranks.run(programs.train_twice, **given_case.arguments, learning_rate=LEARNING_RATE)
    first = whole_model(given_case, LEARNING_RATE)
    assert_trained_once([steps[0] for steps in got], first)
    assert_trained_on([steps[1] for steps in got], continued(given_case, first))


def begun_anew(ctx: Context, **kwargs: Any) -> tuple[Tensors, Tensors]:
    """The second step knows nothing of the first."""
    return programs.train(ctx, **kwargs)(), programs.train(ctx, **kwargs)()


@pytest.mark.deliberate_break
def test_a_second_step_from_the_first_parameters_is_found(ranks: Ranks) -> None:
    given_case = fixed("1F1B", ranks.world_size)
    got = ranks.run(begun_anew, **given_case.arguments, learning_rate=LEARNING_RATE)
    after = whole_model(given_case, LEARNING_RATE)
    with pytest.raises(AssertionError, match=r"^rank 0, stage 0\.0\.weight gradient: .* off by"):
        assert_trained_on([steps[1] for steps in got], continued(given_case, after))
