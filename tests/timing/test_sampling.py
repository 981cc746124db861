"""How often a step is called, from what the author asks for and how long it takes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.timing.sampling import (
    BATCH,
    FIRST_STEPS,
    MAX_STEPS_PER_GRAPH,
    MAX_STEPS_PER_SAMPLE,
    MIN_SAMPLE_SECONDS,
    MIN_SAMPLES,
    Plan,
    Sampling,
    plan,
)


@pytest.mark.parametrize(
    ("step_seconds", "expected"),
    [
        (20e-3, Plan(warmup_steps=3, settling_batches=4, samples=7, steps_per_sample=1)),
        (2e-3, Plan(warmup_steps=25, settling_batches=10, samples=75, steps_per_sample=1)),
        (0.3e-3, Plan(warmup_steps=167, settling_batches=10, samples=125, steps_per_sample=4)),
        (10e-6, Plan(warmup_steps=200, settling_batches=10, samples=150, steps_per_sample=100)),
        (60e-3, Plan(warmup_steps=1, settling_batches=0, samples=4, steps_per_sample=1)),
        (2.0, Plan(warmup_steps=1, settling_batches=0, samples=4, steps_per_sample=1)),
        (0.0, Plan(warmup_steps=200, settling_batches=10, samples=200, steps_per_sample=150)),
    ],
)
def test_a_plan_fits_the_step(step_seconds: float, expected: Plan) -> None:
    assert plan(Sampling(), step_seconds) == expected


@pytest.mark.parametrize(("step_seconds", "steps"), [(10e-6, FIRST_STEPS), (0.9e-3, FIRST_STEPS), (2e-3, 0), (2.0, 0)])
def test_on_a_warm_device_only_short_steps_are_warmed_up(step_seconds: float, steps: int) -> None:
    made = plan(Sampling(), step_seconds, warm=True)
    assert (made.warmup_steps, made.settling_batches) == (steps, 0)


def test_a_size_among_many_has_fewer_steps_in_a_sample() -> None:
    assert plan(Sampling(), 1e-6, most_steps=50).steps_per_sample == 50
    assert plan(Sampling(cuda_graph=True), 1e-6, most_steps=20).steps_per_sample == 20
    assert plan(Sampling(), 1e-4, most_steps=50).steps_per_sample == 10


def test_a_graph_holds_fewer_steps_than_a_queue() -> None:
    assert plan(Sampling(cuda_graph=True), 1e-6).steps_per_sample == MAX_STEPS_PER_GRAPH < MAX_STEPS_PER_SAMPLE


@given(
    step_seconds=st.floats(0, 100, allow_subnormal=False),
    samples=st.integers(BATCH, 1000),
    budget=st.floats(1e-3, 60),
)
def test_a_plan_keeps_to_samples_and_budget(step_seconds: float, samples: int, budget: float) -> None:
    made = plan(Sampling(samples=samples, budget=budget), step_seconds)
    assert MIN_SAMPLES <= made.samples <= samples
    assert 1 <= made.steps_per_sample <= MAX_STEPS_PER_SAMPLE
    sample_seconds = made.steps_per_sample * step_seconds
    assert made.samples == MIN_SAMPLES or made.samples * sample_seconds <= budget * (1 + 1e-9)
    assert sample_seconds >= MIN_SAMPLE_SECONDS * (1 - 1e-9) or made.steps_per_sample == MAX_STEPS_PER_SAMPLE


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(cold=True)], ids=["with a reset", "cold"])
def test_a_sample_that_must_begin_anew_is_of_one_step(sampling: Sampling) -> None:
    assert plan(sampling, 10e-6, repeatable=sampling.cold).steps_per_sample == 1


def test_a_smoke_run_takes_two_samples_without_warm_up() -> None:
    assert plan(Sampling(samples=500, smoke=True), 1.0) == Plan(
        warmup_steps=0, settling_batches=0, samples=2, steps_per_sample=1
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples": 5}, "^samples must be 6 or more, got 5$"),
        ({"samples": -1}, "^samples must be 6 or more, got -1$"),
        ({"budget": 0}, "^budget must be a positive number of seconds, got 0$"),
        ({"budget": -0.5}, "^budget must be a positive number of seconds, got -0.5$"),
        ({"precision": -0.1}, r"^precision must be a fraction from 0 \(never precise enough\) to 1, got -0.1$"),
        ({"precision": 1}, r"^precision must be a fraction .* to 1, got 1$"),
        ({"budget": float("nan")}, "^budget must be a positive number of seconds, got nan$"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**settings)
