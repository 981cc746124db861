"""What a reviewer writes beside a baseline by hand: a regression that is known.

It is read as strictly as what a program wrote, but the cure is another: to see how it is written.
"""

import datetime
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pytest_gpuperf.baselines.plain import OMITTED, Checked, Made, make_mismatch
from pytest_gpuperf.figures.metric import Better

CURE = (
    'write for example "expected": {"busbw": {"status": "regressed", "reason": "…", "until": "2027-01-31"}}, '
    "or delete it"
)

# A known regression leaves more than a tenth of a metric; 90 where 90e9 was meant does not, and would excuse anything.
FACTOR = 10.0

_ABOVE_0 = Checked(lambda number: number > 0, "a number above 0")


def _parse_day(value: object) -> datetime.date:
    try:
        date = datetime.date.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        date = None
    if date is None or date.isoformat() != value:  # 20270131 and 2027-W04-7 are ISO 8601 too
        raise make_mismatch("", value, "a date as YYYY-MM-DD")
    return date


@dataclass(frozen=True, slots=True)
class KnownRegression:
    """One metric may be regressed until the end of a day."""

    reason: Annotated[str, Checked(str.strip, "why the regression is known")]
    until: Annotated[datetime.date, Made(_parse_day)]
    center: Annotated[float, _ABOVE_0] | None = field(default=None, metadata=OMITTED)
    """The value that is expected: what is worse than this by more than the bound still counts."""
    status: Literal["regressed"] = "regressed"

    def holds(self, today: datetime.date) -> bool:
        """Whether the day has not passed."""
        return today <= self.until

    def fits(self, baseline: float) -> bool:
        """Whether it can be about a metric of which this is the baseline's centre, in its unit."""
        return self.center is None or 1 / FACTOR <= self.center / baseline <= FACTOR

    def covers(self, value: float, better: Better, bound: float) -> bool:
        """Whether a regressed metric is no worse than was expected.

        Args:
            value: The metric.
            better: Which way it is better.
            bound: How much worse than ``center`` it may be, as a ratio minus 1.
        """
        if self.center is None:
            return True
        loss = self.center / value if better == "higher" else value / self.center
        return loss <= 1 + bound
