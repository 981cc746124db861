"""A model cut into stages trains as the whole one does: output, loss of each microbatch, all gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pytest_gpuperf import Context, Ranks
from suites.data import once
from suites.pipeline_parallel import programs
from suites.pipeline_parallel.programs import Layers, Step
from suites.strategies import seeds, worlds

pytestmark = pytest.mark.ranks(2, 4)

DTYPE = torch.float64

MAX_WIDTH, MAX_LAYERS, MAX_MICROBATCH, MAX_EXTRA_MICROBATCHES = 8, 2, 3, 3

# The stages multiply smaller matrices than the whole model does, and add microbatches' gradients one by one:
# the additions' order differs, and with it the rounding, u = 2**-53 of each intermediate result. Weights are at
# most 1/width, so that no row or column of a weight matrix sums to more than 1, and tanh's slope is at most 1:
# an error does not grow on its way, forward or backward, but adds up over D = 8 layers of width w = 8.
#   Forward: |x @ W + b| <= 2, so 2(w + 2)u a layer, 160u after the last.
#   Backward, summed squares: d(loss)/d(output) is 2(y - t), at most 4 and off by 320u + 4u; each layer adds
#   4(w + 2)u = 40u, and 4 * 2 * 160u through tanh's slope 1 - h**2: below 11000u after D layers.
#   A weight's gradient sums a product with an activation over at most 7 * 3 = 21 samples:
#   21 * (11000u + 4 * 160u + 4 * 21u) < 250000u.
# Twice that, for the whole model's own rounding, is 5.6e-11. The means are this divided by the elements.
ATOL = 6e-11

Results = list[dict[str, torch.Tensor]]


class Case(NamedTuple):
    """A model, a batch, and how it is cut."""

    stages: list[Layers]
    x: torch.Tensor
    target: torch.Tensor
    microbatches: int
    reduction: str

    @property
    def arguments(self) -> dict[str, Any]:
        """For ``programs.train``."""
        return self._asdict()


def case(stages: int, layers: int, width: int, microbatches: int, microbatch: int, reduction: str, seed: int) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(shape, dtype=DTYPE, generator=generator) * 2 - 1

    def layer() -> tuple[torch.Tensor, torch.Tensor]:
        return uniform(width, width) / width, uniform(width)

    batch = microbatches * microbatch
    drawn = [[layer() for _ in range(layers)] for _ in range(stages)]
    return Case(drawn, uniform(batch, width), uniform(batch, width), microbatches, reduction)


@st.composite
def cases(draw: st.DrawFn, stages: int, schedule: str) -> Case:
    # 1F1B fills the pipeline before its first backward: it takes no fewer microbatches than stages.
    fewest = stages if schedule == "1F1B" else 1
    return case(
        stages,
        layers=draw(st.integers(1, MAX_LAYERS)),
        width=draw(st.integers(1, MAX_WIDTH)),
        microbatches=draw(st.integers(fewest, stages + MAX_EXTRA_MICROBATCHES)),
        microbatch=draw(st.integers(1, MAX_MICROBATCH)),
        reduction=draw(st.sampled_from(["mean", "sum"])),
        seed=draw(seeds),
    )


def reference(given_case: Case) -> Results:
    """The whole model's step over the whole batch, cut into what each rank returns."""
    stages = [programs.sequential(layers, torch.device("cpu")) for layers in given_case.stages]
    output = nn.Sequential(*stages)(given_case.x)
    loss_fn = nn.MSELoss(reduction=given_case.reduction)
    loss_fn(output, given_case.target).backward()
    pairs = zip(output.chunk(given_case.microbatches), given_case.target.chunk(given_case.microbatches), strict=True)
    losses = torch.stack([loss_fn(*pair) for pair in pairs])
    *others, last = (programs.gradients(stage) for stage in stages)
    return [*others, {"output": output, "losses": losses, **last}]


def assert_close(got: torch.Tensor, expected: torch.Tensor, where: str) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=ATOL, msg=lambda text: f"{where}: {text}")


def assert_same(got: Results, expected: Results) -> None:
    for rank, (have, want) in enumerate(zip(got, expected, strict=True)):
        assert list(have) == list(want)
        for name, tensor in want.items():
            assert_close(have[name], tensor, f"rank {rank}, {name}")


@pytest.mark.parametrize("schedule", programs.SCHEDULES)
@given(data=st.data())
def test_training_step(ranks: Ranks, data: st.DataObject, schedule: str) -> None:
    world = data.draw(worlds(ranks))
    drawn = data.draw(cases(world.world_size, schedule))
    got = world.run(once, programs.train, schedule=schedule, **drawn.arguments)
    assert_same(got, reference(drawn))


@pytest.mark.parametrize("schedule", programs.SCHEDULES)
def test_second_step_repeats_the_first(ranks: Ranks, schedule: str) -> None:
    fixed = case(ranks.world_size, 1, 4, ranks.world_size + 1, 2, "mean", seed=1)
    results = ranks.run(programs.train_twice, schedule=schedule, **fixed.arguments)
    assert_same([first for first, _ in results], reference(fixed))
    for first, second in results:
        assert all(torch.equal(second[name], tensor) for name, tensor in first.items())


@pytest.mark.parametrize("schedule", programs.SCHEDULES)
def test_unscaled_gradients_are_the_sum_over_microbatches(ranks: Ranks, schedule: str) -> None:
    fixed = case(ranks.world_size, 1, 4, ranks.world_size, 2, "mean", seed=1)
    got = ranks.run(once, programs.train, schedule=schedule, **fixed.arguments, scale_grads=False)
    expected = [
        {name: tensor * fixed.microbatches if name.endswith("gradient") else tensor for name, tensor in rank.items()}
        for rank in reference(fixed)
    ]
    assert_same(got, expected)


def without_scaled_gradients(ctx: Context, **kwargs: Any) -> Step:
    return programs.train(ctx, **kwargs, scale_grads=False)


def without_bias(ctx: Context, *, stages: list[Layers], **kwargs: Any) -> Step:
    first, *others = stages
    return programs.train(ctx, stages=[[(weight, bias * 0) for weight, bias in first], *others], **kwargs)


def in_another_order(ctx: Context, *, stages: list[Layers], **kwargs: Any) -> Step:
    return programs.train(ctx, stages=[*stages[1:], stages[0]], **kwargs)


def with_targets_of_other_microbatches(ctx: Context, *, target: torch.Tensor, **kwargs: Any) -> Step:
    return programs.train(ctx, target=target.roll(2, 0), **kwargs)


@pytest.mark.parametrize("schedule", programs.SCHEDULES)
@pytest.mark.parametrize(
    "broken",
    [without_scaled_gradients, without_bias, in_another_order, with_targets_of_other_microbatches],
    ids=lambda broken: broken.__name__.replace("_", " "),
)
def test_a_broken_pipeline_is_found(ranks: Ranks, broken: Callable[..., Step], schedule: str) -> None:
    fixed = case(ranks.world_size, 1, 4, ranks.world_size, 2, "mean", seed=1)
    got = ranks.run(once, broken, schedule=schedule, **fixed.arguments)
    with pytest.raises(AssertionError, match=r"^rank 0, 0\.weight gradient: "):
        assert_same(got, reference(fixed))
