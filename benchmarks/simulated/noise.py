"""Noise of simulated suites: a record of launches on one machine or more, and the launches of a run today.

Figures are natural logarithms; larger is slower. An array has a row for each check and a column for each launch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]

RECORDING = 5  # launches of one run that records; later ones are correlated with no earlier run
MACHINES = 4  # in the record of the rows about machines
TODAY = 32  # launches of a run: one that screens, 3 that clear, and 7 blocks of 4

TAIL, TAIL_SLOWER = 0.05, (0.03, 0.10)  # share of bad launches, and how much slower they are
MODAL, APART = 20, 0.025  # the first checks have two speeds on different machines, so far apart
SHARED = math.sqrt(0.5)  # of the standard deviation of correlated figures


@dataclass(frozen=True, slots=True)
class Noise:
    """How the launches of a suite scatter."""

    name: str
    spread: float = 0.01
    """Standard deviation of one launch."""
    wide: float = 0.0
    """Standard deviation of every second check, if it is another."""
    correlation: float = 0.0
    """Between neighbouring launches of a run, AR(1)."""
    tails: str = ""
    """Whether bad launches are bad for a "check", for all checks of a "launch", or not at all."""
    shared: bool = False
    """Whether half of the variance is that of the launch, and the same for all checks."""
    machines: float = 0.0
    """Standard deviation between machines, each check for itself."""
    modes: bool = False
    """Whether a machine has one of two speeds, for each of the first checks."""
    known: bool = True
    """Whether today's machine is the record's first one."""
    drift: float = 0.0
    """By how much everything has become slower since the record."""
    today: float = 1.0
    """By how much launches scatter wider today than in the record."""

    @property
    def several(self) -> bool:
        """Whether the record has several machines."""
        return self.machines > 0 or self.modes

    def spreads(self, checks: int) -> Array:
        """Each check's standard deviation of one launch."""
        found = np.full(checks, self.spread)
        if self.wide:
            found[1::2] = self.wide
        return found


@dataclass(frozen=True, slots=True)
class Suite:
    """A record, and the launches of an unchanged run today."""

    record: dict[str, Array]
    """By machine."""
    here: str
    today: Array

    def machines(self, check: int) -> dict[str, list[float]]:
        """One check's record, as a History takes it."""
        return {name: logs[check].tolist() for name, logs in self.record.items()}

    @property
    def everything(self) -> Array:
        """All launches of the record."""
        return np.concatenate(list(self.record.values()), axis=1)


def split(launches: int, noise: Noise) -> list[int]:
    """Launches of the record by machine; the first one has 5 where it is to be known."""
    if not noise.several:
        return [launches]
    first = min(RECORDING, launches) if noise.known else -(-launches // MACHINES)
    others, rest = MACHINES - 1, launches - first
    counts = [first, *(rest // others + (index < rest % others) for index in range(others))]
    return [count for count in counts if count]


def drawn(rng: np.random.Generator, noise: Noise, checks: int, launches: int) -> Suite:
    """Draw a suite.

    Args:
        rng: The source of the draws.
        noise: How launches scatter.
        checks: Figures of the suite.
        launches: Launches of the record, on all machines together.
    """
    counts = split(launches, noise)
    offsets = [_offset(rng, noise, checks) for _ in range(len(counts) + 1)]
    record = {
        f"machine {index}": offset[:, None] + _record(rng, noise, checks, count)
        for index, (count, offset) in enumerate(zip(counts, offsets, strict=False))
    }
    known = noise.known or not noise.several
    today = noise.drift + noise.today * _run(rng, noise, checks, TODAY) + offsets[0 if known else -1][:, None]
    return Suite(record, "machine 0" if known else "another", today)


def _offset(rng: np.random.Generator, noise: Noise, checks: int) -> Array:
    offset = noise.machines * rng.standard_normal(checks)
    if noise.modes:
        modal = min(MODAL, checks)
        offset[:modal] += APART * rng.integers(0, 2, modal)
    return offset


def _record(rng: np.random.Generator, noise: Noise, checks: int, launches: int) -> Array:
    """Launches of one machine, recorded by runs of 5."""
    runs = [min(RECORDING, launches - start) for start in range(0, launches, RECORDING)]
    return np.concatenate([_run(rng, noise, checks, count) for count in runs], axis=1)


def _run(rng: np.random.Generator, noise: Noise, checks: int, launches: int) -> Array:
    """Launches of one run."""
    logs = rng.standard_normal((checks, launches))
    if noise.correlation:
        rest = math.sqrt(1 - noise.correlation**2)
        for column in range(1, launches):
            logs[:, column] = noise.correlation * logs[:, column - 1] + rest * logs[:, column]
    if noise.shared:
        logs = SHARED * logs + math.sqrt(1 - SHARED**2) * rng.standard_normal(launches)
    logs *= noise.spreads(checks)[:, None]
    if noise.tails:
        shape: Sequence[int] = (checks, launches) if noise.tails == "check" else (1, launches)
        logs += (rng.random(shape) < TAIL) * np.log1p(rng.uniform(*TAIL_SLOWER, shape))
    return logs
