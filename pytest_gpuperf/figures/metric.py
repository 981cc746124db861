"""One metric that a test measured, in SI units."""

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from pytest_gpuperf.figures.conditions import Tripped
from pytest_gpuperf.figures.work import Work

Better: TypeAlias = Literal["higher", "lower"]
Scope: TypeAlias = Literal["gpu", "pair", "gpus", "host"]
"""What a metric depends on: one GPU, a pair of GPUs, all GPUs of its test, or the host with its sockets and disks."""

# A clock or a rounded line rate is off by less than 2 %; a metric further above its limit is a bug in the
# test: no synchronisation, a cache, or multicast that the limit did not count on.
LIMIT_TOLERANCE = 0.02

TRACED = 200  # samples; more are no clearer in a picture of 600 pixels


@dataclass(frozen=True, slots=True)
class Metric:
    """One launch's value of one quantity.

    Raises:
        ValueError: For a metric that cannot be compared as a ratio, or that does not say what it is.
    """

    value: float
    """Median of the samples, in unit."""
    unit: str
    """SI unit without prefix: B/s, s, FLOP/s; x for a ratio."""
    better: Better
    q1: float | None = None
    q3: float | None = None
    samples: int = 1
    limit: float | None = None
    """The best value physics allows, in unit."""
    clock: str = ""
    """What told the time."""
    limit_name: str = ""
    """What sets the limit."""
    interval: tuple[float, float] | None = None
    """Lower and upper bound of the value, each with 95 %; for speedups."""
    at_least: float | None = None
    """What the value must reach, by its interval, whatever the baseline."""
    invalid: tuple[Tripped, ...] = ()
    """Why the machine was not fit for the measurement; empty if it was."""
    power_capped: bool = False
    """Whether a GPU was at its power limit meanwhile."""
    sm_clock: float | None = None
    """The SM clock of the busy GPUs during the measurement, Hz. A metric may follow it; no verdict uses it."""
    host_bound: bool = False
    """Whether it is a time of the host, which launched the work too slowly for the device."""
    waits: bool = field(default=False, metadata={"omitted": True, "optional": True})
    """Whether it is the host's because the step waits for the device."""
    watts: float | None = field(default=None, metadata={"omitted": True, "optional": True})
    """Power of one of the busy GPUs meanwhile."""
    kelvin: float | None = field(default=None, metadata={"omitted": True, "optional": True})
    """Temperature of the busy GPUs meanwhile."""
    trace: tuple[float, ...] = field(default=(), metadata={"omitted": True, "optional": True})
    """The first samples, in unit, in the order of time; empty if the value is not made of samples of its own."""
    work: Work | None = field(default=None, metadata={"optional": True, "omitted": True})
    """What the step must do, from which a model expects a range if nothing is recorded."""
    plain: bool = field(default=False, metadata={"optional": True, "omitted": True})
    """Whether the step does nothing but use what the limit is of, as a copy does: a model then expects most of it."""
    scope: Scope = field(default="gpus", metadata={"optional": True, "omitted": True})
    """What the metric depends on; the marker ``depends`` says it."""
    by_rank: tuple[float, ...] = field(default=(), metadata={"optional": True, "omitted": True})
    """The metric of each rank by itself, in unit; empty if the ranks have none."""

    def for_work(self, work: Work) -> "Metric":
        """Return the metric of a step that must do this work, so that a model can judge it without a baseline."""
        return replace(self, work=work)

    def __post_init__(self) -> None:
        """Refuses what has no meaning, and makes floats of other real numbers, such as numpy's."""
        __tracebackhide__ = True
        for name in ("value", "q1", "q3", "limit", "at_least"):
            figure: object = getattr(self, name)
            if figure is None and name != "value":
                continue
            if not isinstance(figure, (bool, int, float)) and isinstance(figure, numbers.Real):
                figure = float(figure)
                object.__setattr__(self, name, figure)
            number = convert_to_finite(figure)
            if number is None or number <= 0:
                cure = "check the measurement"
                if hasattr(figure, "item"):
                    cure = f"this is a {type(figure).__name__}, pass its .item()"
                raise ValueError(f"metric {name} is {figure!r}, expected a finite number above 0: {cure}")
        if self.q1 is not None and self.q3 is not None and self.q1 > self.q3:
            raise ValueError(f"metric quartiles are q1={self.q1!r} and q3={self.q3!r}, expected q1 <= q3: swap them")
        if self.interval is not None:
            low, high = map(convert_to_finite, self.interval)
            if low is None or high is None or not 0 < low <= high:
                raise ValueError(
                    f"metric interval is {self.interval!r}, expected two finite numbers above 0, the lower one first: "
                    "check the measurement"
                )
        if not isinstance(self.unit, str) or not self.unit:
            raise ValueError(f"metric unit is {self.unit!r}, expected an SI unit: pass for example 'B/s' or 's'")
        if self.better not in ("higher", "lower"):
            raise ValueError(f"metric better is {self.better!r}, expected one of 'higher', 'lower': pass one")
        if not isinstance(self.samples, int) or self.samples < 1:
            raise ValueError(
                f"metric samples is {self.samples!r}, expected an integer of at least 1: count the samples"
            )

    @property
    def share_of_limit(self) -> float | None:
        """How much of what physics allows the value reaches, as a fraction; None without a limit."""
        if self.limit is None:
            return None
        return self.value / self.limit if self.better == "higher" else self.limit / self.value

    @property
    def above_limit(self) -> bool:
        """Whether the value is better than physics allows."""
        if self.limit is None:
            return False
        if self.better == "higher":
            return self.value > self.limit * (1 + LIMIT_TOLERANCE)
        return self.value * (1 + LIMIT_TOLERANCE) < self.limit


def trace_samples(samples: Sequence[float]) -> tuple[float, ...]:
    """The samples that a report draws: the first 200, with 5 digits, since they travel as text."""
    return tuple(float(f"{sample:.5g}") for sample in samples[:TRACED])


def convert_to_finite(value: object) -> float | None:
    """Returns the number as a float; None for what is no finite number (bool is none)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
