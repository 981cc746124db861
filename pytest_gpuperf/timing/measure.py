"""The timing of one program on one rank. Runs in rank processes; every rank issues the same steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.timing.clock import Clock, clock_for, slowest
from pytest_gpuperf.timing.record import RankSamples
from pytest_gpuperf.timing.sampling import Plan, Sampling, plan
from pytest_gpuperf.timing.stepping import Step, captured, prepare

if TYPE_CHECKING:
    from pytest_gpuperf.ranks.context import Context

_ESTIMATES = 3


def measure(
    context: Context, program: Callable[..., Any], kwargs: Mapping[str, Any], sampling: Sampling
) -> RankSamples:
    """Times the step that the program prepares; entry function of a run."""
    clock = clock_for(context.device)
    timed = Timed(context, clock, prepare(context, program, kwargs), sampling)
    timed.warm_up()
    return timed.samples([timed.sample() for _ in range(timed.plan.samples)])


class Timed:
    """A step with the plan by which it is sampled."""

    def __init__(self, context: Context, clock: Clock, step: Step, sampling: Sampling) -> None:
        self._clock = clock
        graph = sampling.cuda_graph and context.device.type == "cuda"
        self._graph = graph
        self._step = step
        self.plan = _plan(context, clock, step, sampling)
        self._calls = self.plan.steps_per_sample
        if graph:
            self._step = captured(step, self.plan.steps_per_sample)
            self._calls = 1

    def warm_up(self) -> None:
        """Runs the plan's warm-up steps, in the form in which they are timed, and drops the times."""
        if self.plan.warmup_steps:
            for _ in range(max(2, self.plan.warmup_steps // self.plan.steps_per_sample)):
                self.sample()

    def sample(self) -> float:
        """Seconds of one step, as this rank saw it."""
        return self._clock.time(self._step, self._calls) / self.plan.steps_per_sample

    def samples(self, seconds: list[float]) -> RankSamples:
        """The record of these samples."""
        return RankSamples(
            seconds=tuple(seconds),
            clock=self._clock.name,
            cuda_graph=self._graph,
            steps_per_sample=self.plan.steps_per_sample,
        )


def _plan(context: Context, clock: Clock, step: Step, sampling: Sampling) -> Plan:
    if sampling.smoke:
        return plan(sampling, 0.0)
    # The first call sets up what later ones use: connections, handles, compiled kernels.
    clock.time(step, 1)
    estimate = min(clock.time(step, 1) for _ in range(_ESTIMATES))
    return plan(sampling, slowest(estimate, context.device))
