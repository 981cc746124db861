"""A known regression: what a reviewer writes beside a baseline by hand, so that a test passes until a date."""

import datetime
import math
from dataclasses import dataclass

from pytest_gpuperf.baselines.json_fields import Fields, mismatch
from pytest_gpuperf.figures.metric import Better

STATUS = "regressed"
CURE = (
    'write for example "expected": {"busbw": {"status": "regressed", "reason": "…", "until": "2027-01-31"}}, '
    "or delete it"
)

# A known regression leaves more than a tenth of a figure; 90 where 90e9 was meant does not, and would excuse anything.
FACTOR = 10.0


@dataclass(frozen=True, slots=True)
class Expected:
    """One metric may be regressed until the end of a day."""

    reason: str
    until: datetime.date
    center: float | None = None
    """Where the metric is expected: what is worse than this by more than the bound still counts."""

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

    def to_json(self) -> dict[str, object]:
        """Plain JSON types."""
        place = {} if self.center is None else {"center": self.center}
        return {"status": STATUS, "reason": self.reason, "until": self.until.isoformat(), **place}

    @classmethod
    def from_json(cls, fields: Fields) -> "Expected":
        """Reads what to_json wrote, or a reviewer.

        Raises:
            FieldError: Where the fields say anything else.
        """
        fields.only("status", "reason", "until", "center")
        fields.choice("status", STATUS)
        if not (reason := fields.text("reason")).strip():
            raise mismatch(f"{fields.where}.reason", reason, "why the regression is known")
        center = fields.optional_number("center") if "center" in fields.values else None
        if center is not None and center <= 0:
            raise mismatch(f"{fields.where}.center", center, "a number above 0")
        return cls(reason=reason, until=_date(fields), center=center)


def _date(fields: Fields) -> datetime.date:
    text = fields.text("until")
    try:
        date = datetime.date.fromisoformat(text)
    except ValueError:
        date = None
    if date is None or date.isoformat() != text:  # 20270131 and 2027-W04-7 are ISO 8601 too
        raise mismatch(f"{fields.where}.until", text, "a date as YYYY-MM-DD")
    return date
