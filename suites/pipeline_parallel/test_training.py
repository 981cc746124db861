"""Several steps, each with a batch of its own, against the whole model's: exactly, and with more bits than float32 has.

Parameters move by the signs of their gradients, so that whole numbers stay whole numbers. Stochastic gradient descent
leaves fractions: a second step multiplies them layer after layer, more bits than a float64 holds, and is compared
within its rounding.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_gpuperf import Context, Ranks
from suites.pipeline_parallel.programs import training
from suites.pipeline_parallel.programs.linked import train_linked
from suites.pipeline_parallel.programs.stages import RUNNERS, Recorder, miscounts
from suites.pipeline_parallel.programs.training import Minibatch
from suites.pipeline_parallel.reference.model import DTYPE, Case, assert_trained_once, case, fixed, whole_model
from suites.pipeline_parallel.reference.schedules import takes
from suites.pipeline_parallel.reference.steps import (
    batches_of,
    continued,
    linked_step,
    move,
    whole_accumulated,
    whole_parameters,
    whole_steps,
    wide,
)
from suites.shared.comparison import Results, assert_squares_in_float32, assert_within
from suites.shared.inputs import integers
from suites.shared.late_messages import late_messages
from suites.shared.step import Tensors, once

pytestmark = pytest.mark.ranks(2, 3)


def odd(schedule: str, ranks: int) -> int:
    """A number of microbatches that is no multiple of the ranks, and no power of two to divide by."""
    return next(
        count for count in range(2 * ranks + 1, 1, -1) if count % ranks and count % 2 and takes(schedule, ranks, count)
    )


@pytest.mark.parametrize("schedule", RUNNERS)
def test_steps_with_other_batches(ranks: Ranks, schedule: str) -> None:
    microbatches = odd(schedule, ranks.world_size)
    given_case = fixed(schedule, ranks.world_size, reduction="linear", microbatches=microbatches)
    # Multiples of the divisor: CUDA multiplies by its reciprocal, which rounds other quotients differently.
    batches = [batch._replace(target=microbatches * batch.target) for batch in batches_of(given_case)]
    arguments = {**given_case.arguments, "batches": batches, "scale_grads": True, "learning_rate": None}
    del arguments["x"], arguments["target"]
    got = ranks.run(training.train_on, **arguments)
    for step, expected in enumerate(whole_steps(given_case, batches, divisor=microbatches)):
        assert_trained_once([steps[step] for steps in got], expected)


@pytest.fixture
def right_gradients_of_weights_used_twice(request: pytest.FixtureRequest, schedule: str) -> None:
    """A test that compares them is expected to fail if this torch has them wrong."""
    if reason := miscounts(schedule):
        request.applymarker(pytest.mark.xfail(reason=reason, raises=AssertionError, strict=True))


def kept_of_an_evaluation(ctx: Context, batch: Minibatch, **given: Any) -> int:
    """Microbatches of a stage for which autograd keeps tensors while an evaluation runs."""
    recorder = Recorder()
    training.Trainer(ctx, **given, recorder=recorder).evaluate(batch)
    return recorder.most_alive


@pytest.mark.ranks(2)
def test_an_evaluation_keeps_nothing_for_a_backward(ranks: Ranks) -> None:
    arguments = fixed("1F1B", ranks.world_size).arguments
    batch = Minibatch(arguments.pop("x"), arguments.pop("target"))
    assert ranks.run(kept_of_an_evaluation, batch, **arguments) == [0] * ranks.world_size


def with_late_messages(ctx: Context, **given: Any) -> list[Tensors]:
    """Steps of stages that pass on two tensors each, all of which arrive as late as they may."""
    with late_messages():
        return train_linked(ctx, **given)


@pytest.mark.usefixtures("right_gradients_of_weights_used_twice")
@pytest.mark.ranks(2, device="cpu")
@pytest.mark.parametrize("schedule", ["GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"])
def test_every_message_is_waited_for(ranks: Ranks, schedule: str) -> None:
    given_case = fixed(schedule, ranks.world_size, reduction="linear")
    batch = batches_of(given_case, gated=True)[1]
    batch = batch._replace(target=batch.target % 3 - 1)
    got = ranks.run(
        with_late_messages,
        schedule=schedule,
        stages=given_case.stages,
        batches=[batch],
        microbatches=given_case.microbatches,
        reduction="linear",
        learning_rate=0.0,
    )
    results = [steps[0] for steps in got]
    masks = {name: tensor for result in results for name, tensor in result.items() if name.endswith("mask")}
    expected = linked_step(given_case, batch, [masks[f"stage {index}.mask"] for index in range(len(given_case.stages))])
    assert_trained_once(results, expected | whole_parameters(given_case))


@pytest.mark.usefixtures("right_gradients_of_weights_used_twice")
@pytest.mark.ranks(3)
@pytest.mark.parametrize("schedule", RUNNERS)
def test_stages_with_links_buffers_and_dropout(ranks: Ranks, schedule: str) -> None:
    # Masks of 32 elements: no two are the same by chance.
    given_case = fixed(schedule, 3, reduction="linear", microbatches=odd(schedule, ranks.world_size), microbatch=16)
    small = [Minibatch(x % 3 - 1, target % 3 - 1, gate) for x, target, gate in batches_of(given_case, gated=True)[:2]]
    got = ranks.run(
        train_linked,
        schedule=schedule,
        stages=given_case.stages,
        batches=small,
        microbatches=given_case.microbatches,
        reduction="linear",
        learning_rate=None,
    )
    current, masks = given_case, []
    seen: dict[str, torch.Tensor] = {}
    for step, batch in enumerate(small):
        results = [steps[step] for steps in got]
        drawn = {name: tensor for result in results for name, tensor in result.items() if name.endswith("mask")}
        by_stage = [drawn[f"stage {index}.mask"] for index in range(len(given_case.stages))]
        expected = linked_step(current, batch, by_stage)
        for name in [name for name in expected if name.endswith(("seen", "rows"))]:
            expected[name] = seen[name] = expected[name] + seen.get(name, 0)
        current = move(current, expected)
        assert_trained_once(results, expected)
        masks += [mask for of_stage in by_stage for mask in of_stage.chunk(given_case.microbatches)]
    assert {float(value) for value in torch.cat(masks).unique()} == {0.0, 2.0}, "dropout keeps the mean: 1 / (1 - p)"
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == len(masks), "two microbatches drop the same"


@pytest.mark.parametrize("max_norm", [None, 1.0, 2.0**30], ids=["unclipped", "clipped", "below the norm"])
@pytest.mark.parametrize("schedule", ["1F1B", "ZBVZeroBubble"])
@pytest.mark.ranks(2)
def test_gradients_of_two_batches_together(ranks: Ranks, schedule: str, max_norm: float | None) -> None:
    given_case = fixed(schedule, ranks.world_size)
    small = integers(given_case.target.shape, given_case.x.dtype, seed=4, low=-3, high=3)
    batches = [Minibatch(given_case.x, given_case.target), Minibatch(given_case.target, small)]
    got = ranks.run(
        training.accumulate,
        schedule=schedule,
        stages=given_case.stages,
        batches=batches,
        microbatches=given_case.microbatches,
        max_norm=max_norm,
    )
    expected = whole_accumulated(given_case, batches, max_norm)
    if max_norm is not None:
        norms = [results.pop("norm") for results in got]
        assert norms == [expected.pop("norm")] * ranks.world_size
    assert_trained_once(got, expected)


def clipped_norm(ctx: Context, gradients: list[torch.Tensor]) -> torch.Tensor:
    """The norm that clipping returns if each rank has these gradients."""
    parameters = [nn.Parameter(torch.zeros_like(gradient, device=ctx.device)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.to(ctx.device)
    return training.clip(parameters, 1.0).cpu()


@pytest.mark.ranks(2)
def test_clipping_takes_the_norm_of_16_bit_gradients_in_float32(ranks: Ranks) -> None:
    assert_squares_in_float32(lambda gradients: ranks.run(clipped_norm, gradients)[1].square(), share=2.0)


@pytest.mark.parametrize("schedule", ["GPipe", "Interleaved1F1B"])
@pytest.mark.ranks(2)
def test_large_messages(ranks: Ranks, schedule: str) -> None:
    # Layers of width 1 leave the size of numbers as it is: sums over the batch, of 27 bits, end below 2**53.
    stages = 2 if schedule == "GPipe" else 4
    given_case = case(schedule, [[1], *[[1]] * stages], 2, 70_001, "linear", seed=1)
    given_case = given_case._replace(x=wide(tuple(given_case.x.shape), 3))
    got = ranks.run(once, training.train, **given_case.arguments, learning_rate=0.0)
    assert_trained_once(got, whole_model(given_case, learning_rate=0.0))


@pytest.mark.parametrize("schedule", ["1F1B", "ZBVZeroBubble"])
@pytest.mark.ranks(2)
def test_what_is_no_number_passes_all_stages(ranks: Ranks, schedule: str) -> None:
    given_case = fixed(schedule, ranks.world_size)
    given_case.x[0, 0], given_case.x[-1, 1] = float("nan"), float("inf")
    got = ranks.run(once, training.train, **given_case.arguments, learning_rate=0.0)
    seen = [{name: numbered(tensor) for name, tensor in results.items()} for results in got]
    expected = whole_model(given_case, learning_rate=0.0)
    assert_trained_once(seen, {name: numbered(tensor) for name, tensor in expected.items()})


def numbered(tensor: torch.Tensor) -> torch.Tensor:
    """What is no number as one, to be compared."""
    return tensor.nan_to_num(nan=0.25, posinf=0.5, neginf=0.75)


LEARNING_RATE = 2.0**-10  # moves weights by less than their size: what follows stays of the same size


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


@pytest.mark.ranks(2)
@pytest.mark.parametrize("schedule", RUNNERS)
def test_two_steps(ranks: Ranks, schedule: str) -> None:
    given_case = fixed(schedule, ranks.world_size)
    got = ranks.run(training.train_twice, **given_case.arguments, learning_rate=LEARNING_RATE)
    first = whole_model(given_case, LEARNING_RATE)
    assert_trained_once([steps[0] for steps in got], first)
    assert_trained_on([steps[1] for steps in got], continued(given_case, first))
