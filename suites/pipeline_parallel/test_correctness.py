"""A model cut into stages trains as the whole one does, exactly: output, losses, all gradients, parameters after.

And each rank does what the schedule's table says, in its order, keeping no more than the simulation of it keeps.

Inputs, weights and targets are whole numbers, means are over powers of two: nothing is rounded, so that no order
of the additions, and no cut into microbatches, changes a bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from pytest_gpuperf import Context, Ranks
from suites.data import integers, once
from suites.pipeline_parallel import programs
from suites.pipeline_parallel.programs import RUNNERS, SINGLE, V_SHAPED, Layers, Step, Trace
from suites.pipeline_parallel.simulation import Durations, simulate, table_of, takes
from suites.strategies import seeds, worlds

pytestmark = pytest.mark.ranks(2, 4)

DTYPE = torch.float64

# A layer of width 3 with weights of 1 and -1 and biases alike makes 3a + 1 of a at most: 12 layers make
# of inputs up to 3 at most 3**12 * 3.5 < 2**21. A loss's gradient is twice the difference to the target, < 2**23;
# backward it grows as activations do forward, so that the largest product of the two, a weight's gradient, is
# < 2**23 * 2 * 3**12 < 2**44, and the sum of 4 * 11 of them < 2**50: whole in float64, which has 53 bits.
MAX_WIDTH, MAX_DEPTH, MAX_LAYERS, MAX_MICROBATCH = 3, 12, 3, 3

POWERS_OF_TWO = (1, 2, 4, 8)

Results = list[dict[str, torch.Tensor]]


class Case(NamedTuple):
    """A model, a batch, and how it is cut."""

    schedule: str
    stages: list[Layers]
    x: torch.Tensor
    target: torch.Tensor
    microbatches: int
    reduction: str

    @property
    def arguments(self) -> dict[str, Any]:
        """For ``programs.train``."""
        return self._asdict()


def case(schedule: str, widths: list[list[int]], microbatches: int, microbatch: int, reduction: str, seed: int) -> Case:
    """A case of the stages whose layers have the widths; the first number of all is the input's."""
    generator = torch.Generator().manual_seed(seed)
    stages: list[Layers] = []
    (width,), *others = widths
    first = width
    for stage in others:
        layers: Layers = []
        for outputs in stage:
            signs = torch.randint(2, (outputs, width + 1), generator=generator).to(DTYPE) * 2 - 1
            layers.append((signs[:, 1:].contiguous(), signs[:, 0].contiguous()))
            width = outputs
        stages.append(layers)
    batch = microbatches * microbatch
    x = integers((batch, first), DTYPE, seed=seed, low=-3, high=3)
    target = integers((batch, width), DTYPE, seed=seed + 1, low=-3, high=3)
    return Case(schedule, stages, x, target, microbatches, reduction)


def fixed(schedule: str, ranks: int, *, reduction: str = "mean", microbatches: int | None = None) -> Case:
    """A case of every schedule, in which everything is a power of two."""
    stages = ranks if schedule in SINGLE else 2 * ranks
    return case(schedule, [[2], *[[2]] * stages], microbatches or 2 * ranks, 2, reduction, seed=1)


@st.composite
def shapes(draw: st.DrawFn, schedules: list[str], ranks: int) -> dict[str, Any]:
    """Arguments for ``case``: no tensors, since hypothesis prints whatever it has drawn, seen or not."""
    schedule = draw(st.sampled_from(schedules))
    mean = draw(st.booleans())
    width = st.integers(1, MAX_WIDTH)
    per_rank = {**dict.fromkeys(SINGLE, 1), **dict.fromkeys(V_SHAPED, 2)}.get(schedule) or draw(st.integers(1, 3))
    stages = ranks * per_rank
    layers = st.lists(width, min_size=1, max_size=min(MAX_LAYERS, MAX_DEPTH // stages))
    widths = draw(st.lists(layers, min_size=stages, max_size=stages))
    counts = [count for count in range(1, 2 * ranks + 4) if takes(schedule, ranks, count)]
    if mean:
        widths[-1][-1] = draw(st.sampled_from([1, 2]))
        counts = [count for count in counts if count in POWERS_OF_TWO]
    return {
        "schedule": schedule,
        "widths": [[draw(width)], *widths],
        "microbatches": draw(st.sampled_from(counts)),
        "microbatch": draw(st.sampled_from([1, 2]) if mean else st.integers(1, MAX_MICROBATCH)),
        "reduction": "mean" if mean else "sum",
        "seed": draw(seeds),
    }


def magnitude(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, -x)


def reference(given_case: Case, learning_rate: float = 1.0) -> dict[str, torch.Tensor]:
    """The whole model's step over the whole batch, by another way than the programs': no module, no optimizer."""
    leaves: dict[str, torch.Tensor] = {}
    hidden = given_case.x
    for index, layers in enumerate(given_case.stages):
        # Every layer is followed by its magnitude: they have the even places.
        for place, (weight, bias) in enumerate(layers):
            names = f"stage {index}.{2 * place}.weight", f"stage {index}.{2 * place}.bias"
            weight, bias = (value.clone().requires_grad_() for value in (weight, bias))
            leaves |= dict(zip(names, (weight, bias), strict=True))
            hidden = magnitude(functional.linear(hidden, weight, bias))
    squares = (hidden - given_case.target) ** 2
    losses = torch.stack([chunk.sum() for chunk in squares.chunk(given_case.microbatches)])
    loss = losses.sum()
    if given_case.reduction == "mean":
        losses = losses * given_case.microbatches / squares.numel()
        loss = losses.mean()
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    results = {f"{name} gradient": gradient for name, gradient in zip(leaves, gradients, strict=True)}
    results |= {name: leaves[name] - learning_rate * results[f"{name} gradient"] for name in leaves}
    return {name: tensor.detach() for name, tensor in {**results, "output": hidden, "losses": losses}.items()}


def assert_exactly(got: torch.Tensor, expected: torch.Tensor, where: str) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=0, msg=lambda text: f"{where}: {text}")


def assert_same(got: Results, expected: dict[str, torch.Tensor]) -> None:
    for rank, results in enumerate(got):
        for name, tensor in results.items():
            assert_exactly(tensor, expected[name], f"rank {rank}, {name}")
    # Each stage is trained by one rank, no more, no less.
    assert sorted(name for results in got for name in results) == sorted(expected)


def assert_as_planned(got: list[Trace], schedule: str, stages: int, microbatches: int) -> None:
    """Each rank did what the table says, and kept as many activations alive as the simulation of it."""
    table = table_of(schedule, len(got), stages, microbatches)
    simulated = simulate(table, Durations())
    for rank, (trace, row, expected) in enumerate(zip(got, table, simulated, strict=True)):
        planned = [str(op) for group in row for op in group]
        assert trace.ops == planned, f"rank {rank} ran {' '.join(trace.ops)}"
        kept = f"rank {rank} kept {trace.most_alive} microbatches alive, {schedule} needs {expected.most_alive}"
        assert trace.most_alive == expected.most_alive, kept


@pytest.mark.parametrize(
    "schedules",
    [["GPipe", "1F1B"], ["Interleaved1F1B", "LoopedBFS"], ["InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]],
    ids=" ".join,
)
@given(data=st.data())
def test_training_step(ranks: Ranks, data: st.DataObject, schedules: list[str]) -> None:
    world = data.draw(worlds(ranks))
    schedules = [schedule for schedule in schedules if not programs.cannot_run(schedule, ranks.backend)]
    drawn = case(**data.draw(shapes(schedules, world.world_size)))
    got = world.run(programs.train_recorded, **drawn.arguments)
    assert_same([trace.results for trace in got], reference(drawn))
    assert_as_planned(got, drawn.schedule, len(drawn.stages), drawn.microbatches)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("schedule", RUNNERS)
def test_second_step_repeats_the_first(ranks: Ranks, schedule: str) -> None:
    given_case = fixed(schedule, ranks.world_size)
    results = ranks.run(programs.train_twice, **given_case.arguments, learning_rate=0.0)
    for step in range(2):
        assert_same([steps[step] for steps in results], reference(given_case, learning_rate=0.0))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("schedule", RUNNERS)
def test_unscaled_gradients_are_the_sum_over_microbatches(ranks: Ranks, schedule: str) -> None:
    given_case = fixed(schedule, ranks.world_size)
    got = ranks.run(once, programs.train, **given_case.arguments, scale_grads=False, learning_rate=0.0)
    expected = {
        name: tensor * given_case.microbatches if name.endswith("gradient") else tensor
        for name, tensor in reference(given_case, learning_rate=0.0).items()
    }
    assert_same(got, expected)


class Fused(nn.Module):
    """Somebody's own layer, which does by one operation what ours do by two."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return magnitude(torch.addmm(self.bias, x, self.weight.T))


def fused(layers: Layers, device: torch.device) -> nn.Module:
    # The names of the parameters are to be those of the reference: ours have the even places.
    return nn.Sequential(*[module for layer in layers for module in (Fused(*layer), nn.Identity())]).to(device)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("schedule", RUNNERS)
def test_a_stage_of_your_own(ranks: Ranks, schedule: str) -> None:
    given_case = fixed(schedule, ranks.world_size)
    got = ranks.run(once, programs.train, **given_case.arguments, build=fused)
    assert_same(got, reference(given_case))


def without_scaled_gradients(ctx: Context, **kwargs: Any) -> Step:
    return programs.train(ctx, **kwargs, scale_grads=False)


def without_bias(ctx: Context, *, stages: list[Layers], **kwargs: Any) -> Step:
    first, *others = stages
    return programs.train(ctx, stages=[[(weight, bias * 0) for weight, bias in first], *others], **kwargs)


def in_another_order(ctx: Context, *, stages: list[Layers], **kwargs: Any) -> Step:
    return programs.train(ctx, stages=[*stages[1:], stages[0]], **kwargs)


def with_targets_of_other_microbatches(ctx: Context, *, target: torch.Tensor, **kwargs: Any) -> Step:
    return programs.train(ctx, target=target.roll(2, 0), **kwargs)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("schedule", RUNNERS)
@pytest.mark.parametrize(
    "broken",
    [without_scaled_gradients, without_bias, in_another_order, with_targets_of_other_microbatches],
    ids=lambda broken: broken.__name__.replace("_", " "),
)
def test_a_broken_pipeline_is_found(ranks: Ranks, broken: Callable[..., Step], schedule: str) -> None:
    given_case = fixed(schedule, ranks.world_size)
    got = ranks.run(once, broken, **given_case.arguments)
    with pytest.raises(AssertionError, match=r"^rank 0, stage 0\.0\.weight gradient: "):
        assert_same(got, reference(given_case))


def test_another_order_is_found(ranks: Ranks) -> None:
    given_case = fixed("GPipe", ranks.world_size)
    got = ranks.run(programs.train_recorded, **given_case.arguments)
    with pytest.raises(AssertionError, match=r"^rank 0 ran 0F0 0F1 0F2 0F3 "):
        assert_as_planned(got, "1F1B", ranks.world_size, given_case.microbatches)


def hoarded(layers: Layers, device: torch.device) -> nn.Module:
    """A stage that keeps the graphs of its outputs, which the backward frees, and something for the backward."""
    module = programs.sequential(layers, device)
    kept: list[torch.Tensor] = []

    def keep(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        kept.append(output.exp())  # saves its result, for a backward that never comes

    module.register_forward_hook(keep)
    return module


def test_activations_kept_too_long_are_found(ranks: Ranks) -> None:
    given_case = fixed("1F1B", ranks.world_size)
    got = ranks.run(programs.train_recorded, **given_case.arguments, build=hoarded)
    assert_same([trace.results for trace in got], reference(given_case))
    kept = f"^rank 0 kept {given_case.microbatches} microbatches alive, 1F1B needs {ranks.world_size}"
    with pytest.raises(AssertionError, match=kept):
        assert_as_planned(got, "1F1B", ranks.world_size, given_case.microbatches)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("schedule", "microbatches", "message"),
    [
        ("1F1B", 1, "must be greater than or equal to the number of stages"),
        ("Interleaved1F1B", 5, "multiple of the number of rounds"),
        ("InterleavedZeroBubble", 5, "multiple of the number of rounds"),
        ("DualPipeV", 3, "at least as many microbatches as stages"),
    ],
)
def test_microbatches_that_a_schedule_does_not_take(
    ranks: Ranks, schedule: str, microbatches: int, message: str
) -> None:
    assert not takes(schedule, ranks.world_size, microbatches)
    given_case = fixed(schedule, ranks.world_size, microbatches=microbatches)
    with pytest.raises(ValueError, match=message):
        ranks.run(once, programs.train, **given_case.arguments)


@pytest.mark.ranks(2)
def test_a_batch_that_microbatches_do_not_divide(ranks: Ranks) -> None:
    given_case = fixed("GPipe", ranks.world_size)._replace(microbatches=3)
    with pytest.raises(ValueError, match="a batch of 8 cannot be cut into 3 microbatches of one size"):
        ranks.run(once, programs.train, **given_case.arguments)
