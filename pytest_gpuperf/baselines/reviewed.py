"""What a reviewer writes beside a baseline by hand: a regression that is known, and bounds where the run's do not fit.

They are read as strictly as what a program wrote, but the cure is another: to see how they are written.
"""

import datetime
import math
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

from pytest_gpuperf.baselines.plain import OMITTED, Checked, Made, mismatch
from pytest_gpuperf.figures.metric import Better

CURES = {
    "expected": 'write for example "expected": {"busbw": {"status": "regressed", "reason": "…", "until": '
    '"2027-01-31"}}, or delete it',
    "policy": 'write for example "policy": {"busbw": {"detect": 0.15, "reason": "launches differ by 5 % at this '
    'size"}}, or delete it',
}

# A known regression leaves more than a tenth of a figure; 90 where 90e9 was meant does not, and would excuse anything.
FACTOR = 10.0

_ABOVE_0 = Checked(lambda number: number > 0, "a number above 0")
_BELOW_1 = Checked(lambda number: number < 1, "a fraction below 1, 0.15 for 15 %")
_Bound: TypeAlias = Annotated[float, _ABOVE_0, _BELOW_1]


def _day(value: object) -> datetime.date:
    try:
        date = datetime.date.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        date = None
    if date is None or date.isoformat() != value:  # 20270131 and 2027-W04-7 are ISO 8601 too
        raise mismatch("", value, "a date as YYYY-MM-DD")
    return date


@dataclass(frozen=True, slots=True)
class KnownRegression:
    """One metric may be regressed until the end of a day."""

    reason: Annotated[str, Checked(str.strip, "why the regression is known")]
    until: Annotated[datetime.date, Made(_day)]
    center: Annotated[float, _ABOVE_0] | None = field(default=None, metadata=OMITTED)
    """Where the metric is expected: what is worse than this by more than the bound still counts."""
    status: Literal["regressed"] = "regressed"

    def holds(self, today: datetime.date) -> bool:
        """Whether the day has not passed."""
        return today <= self.until

    def fits(self, baseline: float) -> bool:
        """Whether it can be about a figure of which this is the baseline's centre, in its unit."""
        return self.center is None or 1 / FACTOR <= self.center / baseline <= FACTOR

    def covers(self, value: float, better: Better, bound: float) -> bool:
        """Whether a regressed figure is no worse than was expected."""
        if self.center is None:
            return True
        loss = math.log(self.center / value) if better == "higher" else math.log(value / self.center)
        return loss <= bound


@dataclass(frozen=True, slots=True)
class MetricPolicy:
    """The bounds of one metric on one hardware."""

    reason: Annotated[str, Checked(str.strip, "why the run's policy does not fit")]
    detect: _Bound | None = field(default=None, metadata=OMITTED)
    """The slowdown that is to be found, as a ratio minus 1; the run's where it is None."""
    min_effect: _Bound | None = field(default=None, metadata=OMITTED)
    """The slowdown that is no regression, as a ratio minus 1; the run's where it is None."""

    def __post_init__(self) -> None:
        """Refuses a policy that asks for nothing."""
        if self.detect is None and self.min_effect is None:
            raise mismatch("policy", ["reason"], "detect, min_effect or both")
