"""A model cut into stages trains as the whole one does, exactly: output, losses, all gradients, parameters after.

And each rank does what the schedule's table says, in its order, keeping no more than the simulation of it keeps.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pytest_gpuperf import Ranks
from suites.pipeline_parallel.programs import training
from suites.pipeline_parallel.programs.stages import RUNNERS, SINGLE, V_SHAPED, Layers, Recorder, cannot_run
from suites.pipeline_parallel.programs.training import Trace
from suites.pipeline_parallel.reference.model import Case, assert_trained_once, case, fixed, magnitude, whole_model
from suites.pipeline_parallel.reference.schedules import Durations, simulate, table_of, takes
from suites.shared.step import once
from suites.shared.strategies import seeds, worlds

pytestmark = pytest.mark.ranks(2, 4)

# A layer of width 3 with weights of 1 and -1 and biases alike makes 3a + 1 of a at most: 12 layers make
# of inputs up to 3 at most 3**12 * 3.5 < 2**21. A loss's gradient is twice the difference to the target, < 2**23;
# backward it grows as activations do forward, so that the largest product of the two, a weight's gradient, is
# < 2**23 * 2 * 3**12 < 2**44, and the sum of 4 * 11 of them < 2**50: whole in float64, which has 53 bits.
MAX_WIDTH, MAX_DEPTH, MAX_LAYERS, MAX_MICROBATCH = 3, 12, 3, 3

POWERS_OF_TWO = (1, 2, 4, 8)


@st.composite
def drawn_shapes(draw: st.DrawFn, schedules: list[str], ranks: int) -> dict[str, Any]:
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


def assert_as_planned(got: list[Trace], schedule: str, stages: int, microbatches: int) -> None:
    """Each rank did what the table says, and kept as many activations alive as the simulation of it."""
    table = table_of(schedule, len(got), stages, microbatches)
    simulated = simulate(table, Durations())
    for rank, (trace, row, expected) in enumerate(zip(got, table, simulated, strict=True)):
        planned = [str(op) for group in row for op in group]
        assert trace.ops == planned, f"rank {rank} ran {' '.join(trace.ops)}"
        kept = f"rank {rank} kept {trace.most_alive} microbatches alive, {schedule} needs {expected.most_alive}"
        assert trace.most_alive == expected.most_alive, kept


def assert_trains_as_planned(ranks: Ranks, given_case: Case) -> None:
    got = ranks.run(training.train_recorded, **given_case.arguments)
    assert_trained_once([trace.results for trace in got], whole_model(given_case))
    assert_as_planned(got, given_case.schedule, len(given_case.stages), given_case.microbatches)


@pytest.mark.parametrize("schedule", RUNNERS)
def test_training_step(ranks: Ranks, schedule: str) -> None:
    assert_trains_as_planned(ranks, fixed(schedule, ranks.world_size))


@given(data=st.data())
def test_training_step_of_drawn_models(ranks: Ranks, data: st.DataObject) -> None:
    world = data.draw(worlds(ranks))
    schedules = [schedule for schedule in RUNNERS if not cannot_run(schedule, ranks.backend)]
    assert_trains_as_planned(world, case(**data.draw(drawn_shapes(schedules, world.world_size))))


MESSAGES = 2
"""Outputs of 1F1B that may outlive their backward: the schedule's last one, and one whose message is not yet done with.

With gloo the other schedules of torch 2.13 hold on to all messages until the step ends.
"""


@pytest.mark.ranks(2, 3)
def test_what_was_sent_is_let_go_after_its_backward(ranks: Ranks) -> None:
    """So that memory does not grow with the number of microbatches; the last stage's outputs are returned."""
    microbatches = 4 * ranks.world_size
    given_case = fixed("1F1B", ranks.world_size, microbatches=microbatches)
    for rank, trace in enumerate(ranks.run(training.train_recorded, **given_case.arguments)):
        left = f"rank {rank} had the outputs of {trace.most_left} of {microbatches} microbatches after their backward"
        assert trace.most_left <= MESSAGES, left


def test_an_output_that_outlives_its_backward_is_counted() -> None:
    recorder = Recorder()
    outputs = [torch.zeros(1), torch.zeros(1)]
    for microbatch, output in enumerate(outputs):
        recorder.sends(0, microbatch, output)
    del output
    recorder.done(0, "B", 0)
    recorder.done(0, "B", 1)
    outputs.clear()
    recorder.done(0, "F", 2)
    assert recorder.most_left == 2


@pytest.mark.ranks(2)
@pytest.mark.parametrize("schedule", RUNNERS)
def test_unscaled_gradients_are_the_sum_over_microbatches(ranks: Ranks, schedule: str) -> None:
    given_case = fixed(schedule, ranks.world_size)
    got = ranks.run(once, training.train, **given_case.arguments, scale_grads=False, learning_rate=0.0)
    expected = {
        name: tensor * given_case.microbatches if name.endswith("gradient") else tensor
        for name, tensor in whole_model(given_case, learning_rate=0.0).items()
    }
    assert_trained_once(got, expected)


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
    got = ranks.run(once, training.train, **given_case.arguments, build=fused)
    assert_trained_once(got, whole_model(given_case))


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
        ranks.run(once, training.train, **given_case.arguments)


@pytest.mark.ranks(2)
def test_a_batch_that_microbatches_do_not_divide(ranks: Ranks) -> None:
    given_case = fixed("GPipe", ranks.world_size)._replace(microbatches=3)
    with pytest.raises(ValueError, match="a batch of 8 cannot be cut into 3 microbatches of one size"):
        ranks.run(once, training.train, **given_case.arguments)
