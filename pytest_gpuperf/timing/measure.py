"""The timing of one program on one rank. Runs in rank processes; every rank issues the same steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.figures.precision import compute_halfwidth
from pytest_gpuperf.figures.timing import RankSamples
from pytest_gpuperf.timing.clock import (
    LEAST_LEFT_SECONDS,
    LEFT_SHARE,
    Clock,
    choose_clock,
    list_punctual,
    reduce_to_slowest,
)
from pytest_gpuperf.timing.sampling import (
    BATCH,
    LONGEST_WARMUP_SECONDS,
    MAX_STEPS_PER_SAMPLE,
    MIN_SAMPLE_SECONDS,
    MIN_SAMPLES,
    STEADY,
    WARMUP_BATCH,
    Plan,
    Sampling,
    plan,
)
from pytest_gpuperf.timing.stepping import CAPTURE_WARMUP, Step, capture, find_reset, prepare
from pytest_gpuperf.timing.verification import Verification, Verify

if TYPE_CHECKING:
    from pytest_gpuperf.ranks.context import Context

_CLEAR = 5 * MIN_SAMPLE_SECONDS  # a step that long is a sample by itself, however long it takes to the millisecond


@dataclass(slots=True)
class _Samples:
    """Samples as this rank saw them, and what all ranks know of them."""

    seconds: list[float] = field(default_factory=list)
    """Seconds of one step on this rank, for each sample."""
    of_slowest: list[float] = field(default_factory=list)
    """Seconds of one step on the slowest rank, for each sample."""
    late: list[float] = field(default_factory=list)
    """Above 0 if a rank's host was late."""

    def __add__(self, other: _Samples) -> _Samples:
        """These samples, and then the others."""
        return _Samples(self.seconds + other.seconds, self.of_slowest + other.of_slowest, self.late + other.late)


def measure(
    context: Context,
    program: Callable[..., Any],
    kwargs: Mapping[str, Any],
    sampling: Sampling,
    verify: Verify | None = None,
    warm: bool = False,
) -> RankSamples:
    """Times the step that the program prepares; entry function of a run. Another step may have left the device warm."""
    clock = choose_clock(context.device, sampling)
    verification = Verification.of(verify, context, program)
    timed = Timed(context, clock, prepare(context, program, kwargs), sampling, verification, warm=warm)
    timed.warm_up()
    samples = timed.samples(timed.sample_until_precise())
    timed.verify()
    return samples


class Timed:
    """A step with the plan by which it is sampled."""

    def __init__(
        self,
        context: Context,
        clock: Clock,
        step: Step,
        sampling: Sampling,
        verification: Verification | None = None,
        *,
        taken: int = 0,
        warm: bool = False,
        most_steps: int = MAX_STEPS_PER_SAMPLE,
    ) -> None:
        """Plans the samples of a step.

        Args:
            context: the rank's.
            clock: for the device.
            step: what is timed.
            sampling: what the author chose.
            verification: looks at what the first step returns, and at others when ``verify`` is called.
            taken: how many steps were taken already; whoever took them looked at the first.
            warm: whether the device is warm by other steps.
            most_steps: of a sample.
        """
        self._verification = verification
        self._taken = taken
        self._warm = warm
        self._clock = clock
        self._device = context.device
        self._precision = sampling.precision
        self._most_steps = most_steps
        self.budget = sampling.budget
        self._reset = find_reset(step)
        graph = sampling.cuda_graph and context.device.type == "cuda"
        self._graph = graph
        self._step = step
        self._calls = 1
        self._steps_per_call = 1
        self._settled = _Samples()
        self._settled_in = 0.0
        """Seconds that these took by the host's clock."""
        self._looks = not sampling.smoke
        self._left: list[tuple[float, float]] = []
        """Seconds of each sample that the clock measured, and for which the device continued to run."""
        if not taken:
            self.verify()  # first of all: a wrong answer needs no time
        self.plan = self._plan(sampling)
        self._calls = self.plan.steps_per_sample
        if graph:
            self._step = capture(step, self.plan.steps_per_sample)
            self._taken += CAPTURE_WARMUP
            self._calls, self._steps_per_call = 1, self.plan.steps_per_sample

    def warm_up(self) -> None:
        """Runs the step in the form in which it is timed: the plan's steps, then until it is steady; 0.25 s at most.

        Its last samples are then those of a steady step, so ``sample_until_precise`` goes on from them.
        """
        if self._warm and not self._graph:
            # Not by the clock, whose gate would learn from a step that only waits at first.
            for _ in range(self.plan.warmup_steps):
                self._step()
            self._taken += self.plan.warmup_steps
            # So far no two steps were behind one gate, which the first sample alone would then pay for: it does not
            # count. The sizes of a sweep have four samples each, of which only the median counts.
            if self.plan.warmup_steps and self._most_steps == MAX_STEPS_PER_SAMPLE:
                self.sample()
        else:
            self._settle()
        if not self._settled.seconds:
            self._clock.begin()

    def _settle(self) -> None:
        began = time.perf_counter()
        before, before_began = _Samples(), began
        # The first replay of a graph also brings it to the device.
        left = max(int(self._graph), self.plan.warmup_steps // self.plan.steps_per_sample)
        while left > 0:
            self._clock.begin()  # the last of these batches may count
            before_began = time.perf_counter()
            size = WARMUP_BATCH if self.plan.settling_batches else min(WARMUP_BATCH, left)
            before, lasted = self._batch(size, began)
            left -= size
            if lasted >= LONGEST_WARMUP_SECONDS:
                return
        for _ in range(self.plan.settling_batches):
            after_began = time.perf_counter()
            after, lasted = self._batch(WARMUP_BATCH, began)
            if before.seconds and _is_steady(before, after):
                self._settled, self._settled_in = before + after, time.perf_counter() - before_began
                return
            if lasted >= LONGEST_WARMUP_SECONDS:
                return
            before, before_began = after, after_began

    def sample(self) -> float:
        """Seconds of one step, as this rank saw it."""
        self._taken += self.plan.steps_per_sample
        seen = self._clock.time(self._step, self._calls, self._reset)
        self._left.append((seen, self._clock.left))
        return seen / self.plan.steps_per_sample

    @property
    def late(self) -> bool:
        """Whether the last sample waited for this rank's host."""
        return self._clock.late

    def sample_until_precise(self) -> list[float]:
        """Samples until the median of the slowest rank's is precise enough, or there are as many as were planned.

        Samples that waited for a host do not count: see ``list_punctual``.
        """
        taken, lasted = self._settled, reduce_to_slowest([self._settled_in], self._device)[0]
        began = time.perf_counter() - self._settled_in
        while len(kept := list_punctual(taken.late)) < self.plan.samples:
            if compute_halfwidth([taken.of_slowest[place] for place in kept]) <= self._precision:
                break
            if lasted >= self.budget and len(kept) >= MIN_SAMPLES:
                break
            few = MIN_SAMPLES - len(kept)
            size = few if few > 0 else BATCH - len(kept) % BATCH
            more, lasted = self._batch(min(size, self.plan.samples - len(kept)), began)
            taken += more
        return [taken.seconds[place] for place in kept]

    def samples(self, seconds: list[float]) -> RankSamples:
        """The record of these samples.

        Raises:
            RuntimeError: The step leaves work on the device that the clock does not see, on some rank.
        """
        if self._looks and self._left:
            self._require_an_end()
        return RankSamples(
            seconds=tuple(seconds),
            clock=self._clock.name,
            cuda_graph=self._graph,
            steps_per_sample=self.plan.steps_per_sample,
            host_bound=self._clock.host_bound,
            waits=self._clock.waits,
        )

    def verify(self) -> None:
        """Takes the step once more, untimed and in the form in which it is timed, and has its output looked at.

        Raises:
            AssertionError: the output is wrong.
        """
        if self._verification is None:
            return
        if self._reset is not None:
            self._reset()
            self._taken = 0
        output = self._step()
        self._taken += self._steps_per_call
        self._verification(output, self._taken)

    def _require_an_end(self) -> None:
        # Work on streams that nothing waits for is no part of what events on the current stream enclose. The median,
        # since a host that is held up right after a sample takes itself for a device that goes on.
        mine = [statistics.median(of_samples) for of_samples in zip(*self._left, strict=True)]
        # All ranks decide together: one that raised alone would leave the others in their next collective.
        seen, left = reduce_to_slowest(mine, self._device)
        if left <= max(LEAST_LEFT_SECONDS, LEFT_SHARE * seen):
            return
        raise RuntimeError(
            f"the device went on for {left * 1e6:.0f} us after the current stream had ended the step's work, which "
            f"took {seen * 1e6:.0f} us: the step leaves work on streams that nothing waits for, and its time would "
            "lack it; end the step with torch.cuda.current_stream().wait_stream(side), or with work.wait() for an "
            "async collective"
        )

    def _batch(self, size: int, began: float) -> tuple[_Samples, float]:
        """So many samples, and the seconds since ``began`` by the clock of the host that is the latest."""
        batch = [(self.sample(), float(self.late)) for _ in range(size)]
        seconds = [taken for taken, _ in batch]
        told = [*seconds, *(flag for _, flag in batch), time.perf_counter() - began]
        *told, lasted = reduce_to_slowest(told, self._device)  # the same on all ranks, so that all stop together
        return _Samples(seconds, told[:size], told[size:]), lasted

    def _plan(self, sampling: Sampling) -> Plan:
        if sampling.smoke:
            return plan(sampling, 0.0)
        # The first call sets up what later ones use: connections, handles, compiled kernels. How long the host takes
        # for it says nothing of theirs, so that the clock is not to see it.
        if not self._taken:
            if self._reset is not None:
                self._reset()
            self._step()
            self._taken += 1
        estimate = self._estimate()
        if estimate < _CLEAR:
            estimate = min(estimate, self._estimate())  # a host may have been held up in one of them
        return plan(
            sampling,
            estimate,
            repeatable=self._reset is None,
            warm=self._warm,
            most_steps=self._most_steps,
        )

    def _estimate(self) -> float:
        """Seconds of one step on the slowest rank."""
        self._taken += 1
        return reduce_to_slowest([self._clock.time(self._step, 1, self._reset)], self._device)[0]


def _is_steady(before: _Samples, after: _Samples) -> bool:
    """Whether the medians of two batches are no further apart than those of a steady step."""
    earlier, later = (statistics.median(batch.of_slowest) for batch in (before, after))
    return abs(later - earlier) <= STEADY * earlier
