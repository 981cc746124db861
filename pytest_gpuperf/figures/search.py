"""Configurations of one program side by side: the fastest, and those that trade time for memory. Knows no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.figures.timing import Timing, observe

PEAK_FLOPS = "peak FLOP/s"
"""What limits a rate of tokens, as the name of its limit: the share of it is the MFU."""


class Infeasible(Exception):
    """A configuration cannot run here, and the message is the reason. A program raises it on all ranks alike."""


class DoesNotFit(Infeasible):
    """A configuration needs more memory than there is."""

    def __init__(self, needs: float, there: float, exact: bool) -> None:
        """Keeps the bytes.

        Args:
            needs: Bytes on the rank that needs the most.
            there: Bytes that a rank has.
            exact: Whether ``needs`` was computed before; otherwise an allocation failed, and it needs at least that.
        """
        super().__init__(needs, there, exact)
        self.needs = needs
        self.there = there
        self.exact = exact

    def __str__(self) -> str:
        return f"needs {'' if self.exact else 'at least '}{self.needs:.0f} B, and {self.there:.0f} B are there"


@dataclass(frozen=True, slots=True)
class Trial:
    """One configuration, and what came of it."""

    name: str
    arguments: Mapping[str, Any]
    """What the program got beside what all configurations share."""
    timing: Timing | None = None
    """None: it did not run."""
    peaks: tuple[int | None, ...] = ()
    """Bytes that torch's allocator held at most while steps ran, by rank; None on CPUs."""
    host_peaks: tuple[int | None, ...] = ()
    """Bytes of pinned host memory that torch had at most while steps ran, by rank; None on CPUs."""
    why_not: Infeasible | None = None
    """Why it did not run."""

    @property
    def seconds(self) -> float | None:
        """The median time of a step; None if it did not run."""
        return None if self.timing is None else self.timing.median

    @property
    def peak(self) -> int | None:
        """Bytes of device memory on the rank that needs the most; None if a rank could not tell."""
        return _find_largest(self.peaks)

    @property
    def host_peak(self) -> int | None:
        """Bytes of pinned host memory on the rank that needs the most; None if a rank could not tell."""
        return _find_largest(self.host_peaks)


@dataclass(frozen=True)
class Search:
    """The trials of all configurations of one search.

    Raises:
        Infeasible: No configuration could run; the message has each one's reason.
    """

    name: str
    """Tells the searches of a test apart."""
    trials: tuple[Trial, ...]
    """In the order in which they were given."""
    tokens: float | None = None
    """Tokens of one step on all ranks together, the same in every configuration."""
    flop: float | None = None
    """The model's floating-point operations in one step on all ranks together; those computed twice count once."""
    peak_flops: float | None = None
    """FLOP/s of one GPU's matrix units; None if unknown, as on CPUs."""

    def __post_init__(self) -> None:
        if not self.ran:
            reasons = "; ".join(f"{trial.name}: {trial.why_not}" for trial in self.trials)
            raise Infeasible(f"no configuration of {self.name} could run: {reasons}")

    @cached_property
    def ran(self) -> tuple[Trial, ...]:
        """The trials that ran, the fastest first."""
        return tuple(sorted((trial for trial in self.trials if trial.timing is not None), key=_require_seconds))

    @property
    def best(self) -> Trial:
        """The fastest."""
        return self.ran[0]

    @property
    def runner_up(self) -> Trial | None:
        """The second fastest; None if only one could run."""
        return self.ran[1] if len(self.ran) > 1 else None

    @cached_property
    def frontier(self) -> tuple[Trial, ...]:
        """The Pareto set, the fastest first: no other trial is at most as slow and needs less memory.

        Only the fastest if a trial's memory is unknown.
        """
        if any(trial.peak is None for trial in self.ran):
            return (self.best,)
        kept: list[Trial] = []
        for trial in self.ran:
            if not kept or _require_peak(trial) < _require_peak(kept[-1]):
                kept.append(trial)
        return tuple(kept)

    @property
    def leanest(self) -> Trial | None:
        """The trial that needs the least memory; None if a trial's memory is unknown."""
        return None if any(trial.peak is None for trial in self.ran) else self.frontier[-1]

    @property
    def figures(self) -> dict[str, Metric]:
        """What is judged: ``perf.check(**found.figures)``.

        ``best`` and ``runner_up`` are tokens per second, or times if no tokens are given. ``least_memory`` is the peak
        of the leanest trial. Which configuration they are of may change: the table says it.
        """
        figures = {"best": self.speed(self.best)}
        if self.runner_up is not None:
            figures["runner_up"] = self.speed(self.runner_up)
        if self.leanest is not None:
            figures["least_memory"] = self.memory(self.leanest)
        return figures

    def speed(self, trial: Trial) -> Metric:
        """Tokens per second, with the matrix units' peak as the limit; the time if no tokens are given.

        Raises:
            ValueError: The trial did not run.
        """
        timing = _require_timing(trial)
        if self.tokens is None:
            return timing.time
        limit = None
        if self.flop is not None and self.peak_flops is not None:
            limit = self.tokens * timing.world_size * self.peak_flops / self.flop
        return timing.rate(self.tokens, "token/s", limit=limit, limit_name=PEAK_FLOPS if limit else "")

    def memory(self, trial: Trial) -> Metric:
        """The peak of the rank that needs the most; unit B, lower is better.

        Raises:
            ValueError: The trial did not run, or its memory is unknown.
        """
        timing = _require_timing(trial)
        if trial.peak is None:
            raise ValueError(f"the memory of configuration {trial.name!r} is unknown, as on CPUs: check its speed only")
        return observe(Metric(float(trial.peak), "B", "lower", clock="allocator"), timing.conditions)

    def mfu(self, trial: Trial) -> float | None:
        """Model FLOPs utilisation (arXiv 2204.02311, appendix B): FLOP over time, GPUs and peak; None if unknown."""
        if self.flop is None or self.peak_flops is None or trial.timing is None:
            return None
        return self.flop / (trial.timing.median * trial.timing.world_size * self.peak_flops)


def _require_timing(trial: Trial) -> Timing:
    if trial.timing is None:
        raise ValueError(f"configuration {trial.name!r} did not run: {trial.why_not}; take one of search.ran")
    return trial.timing


def _require_seconds(trial: Trial) -> float:
    return _require_timing(trial).median


def _require_peak(trial: Trial) -> int:
    assert trial.peak is not None
    return trial.peak


def _find_largest(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None
