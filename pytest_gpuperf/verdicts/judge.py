"""The rule that holds one figure against its baseline, and the verdict it comes to."""

import math
from dataclasses import dataclass
from enum import Enum

from pytest_gpuperf.verdicts.baselines import MetricBaseline, TestBaseline
from pytest_gpuperf.verdicts.expected import Expected
from pytest_gpuperf.verdicts.json_fields import Fields
from pytest_gpuperf.verdicts.metric import Metric

RELATIVE_BOUND = 0.05  # a change of less than 5 % is not worth a red check, even where it could be seen
SPREAD_FACTOR = 3.0  # launches further than 3 sigma from the centre are 3 in 1000, were their logarithms normal
UNDECIDABLE_ABOVE = 0.15  # a wider bound lets a slowdown of 20 % (ln 1.2 = 0.18) hide in the spread


class Outcome(Enum):
    """What a figure turned out to be."""

    SAME = "same"
    IMPROVED = "improved"
    REGRESSED = "regressed"
    UNDECIDED = "undecided"
    """Within the spread of its baseline, which is too wide to call it the same."""
    MISSING = "missing"
    STALE = "stale"
    """The baseline is of another test body, unit, direction or clock."""
    BROKEN = "broken"
    """Above the physical limit: the measurement is wrong."""
    RECORDED = "recorded"
    """Became the baseline; the caller says so, judge never does."""
    UNJUDGED = "unjudged"
    """Only shown; the caller says so, judge never does."""
    EXPECTED = "expected"
    """Regressed, as is known until a date; the caller says so, judge never does."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one metric of one test came to on one machine."""

    test: str
    metric_name: str
    metric: Metric
    outcome: Outcome
    hardware_key: str
    baseline: MetricBaseline | None = None
    change: float | None = None
    """Relative to the baseline's centre; above 0 is better, whichever direction that is."""
    bound: float | None = None
    """How large |ln(value / centre)| may be and still be the same."""
    expected: Expected | None = None
    """The regression that its baseline says is known, whether the figure is regressed or not."""

    def to_json(self) -> dict[str, object]:
        """Plain JSON types: verdicts travel between processes."""
        return {
            "test": self.test,
            "metric_name": self.metric_name,
            "metric": self.metric.to_json(),
            "outcome": self.outcome.value,
            "hardware_key": self.hardware_key,
            "baseline": None if self.baseline is None else self.baseline.to_json(),
            "change": self.change,
            "bound": self.bound,
            "expected": None if self.expected is None else self.expected.to_json(),
        }

    @classmethod
    def from_json(cls, data: object) -> "Verdict":
        """Reads what to_json wrote.

        Raises:
            FieldError: Where data is anything else.
        """
        fields = Fields.of(data, "verdict")
        fields.only(*cls.__dataclass_fields__)
        baseline = None
        if fields.values.get("baseline") is not None:
            child = fields.child("baseline")
            baseline = MetricBaseline.from_json(child.values, child.where)
        metric = fields.child("metric")
        return cls(
            test=fields.text("test"),
            metric_name=fields.text("metric_name"),
            metric=Metric.from_json(metric.values, metric.where),
            outcome=Outcome(fields.choice("outcome", *(outcome.value for outcome in Outcome))),
            hardware_key=fields.text("hardware_key"),
            baseline=baseline,
            change=fields.optional_number("change"),
            bound=fields.optional_number("bound"),
            expected=(None if fields.values.get("expected") is None else Expected.from_json(fields.child("expected"))),
        )


def judge(
    test: str,
    metric_name: str,
    metric: Metric,
    *,
    hardware_key: str,
    body_hash: str,
    baseline: TestBaseline | None,
    relative_bound: float = RELATIVE_BOUND,
) -> Verdict:
    """Holds one figure against its baseline.

    In this order:

    1. BROKEN above the physical limit, whatever the baseline says.
    2. MISSING without a baseline.
    3. STALE where the baseline is of another body, unit, direction or (both named) clock.
    4. REGRESSED or IMPROVED where |ln(value / centre)| exceeds
       bound = max(relative_bound, SPREAD_FACTOR * sigma_b). The logarithm gives a time, and the throughput
       made from it, one verdict.
    5. UNDECIDED where SPREAD_FACTOR * sigma_b exceeds UNDECIDABLE_ABOVE: a spread too wide to call the figure the same.
    6. SAME.

    The rule is deliberately simple and stands here alone. It sees one figure of one launch; a better rule
    replaces this function and nothing else.

    Args:
        test: Node id.
        metric_name: The metric's name in its test.
        metric: What was measured.
        hardware_key: Names the machine.
        body_hash: Names the test's source as it is now.
        baseline: The test's entry, None where it has none.
        relative_bound: The smallest change worth a verdict, as a fraction.
    """
    stored = None if baseline is None else baseline.metrics.get(metric_name)
    change = bound = None
    if metric.above_limit:
        outcome = Outcome.BROKEN
    elif baseline is None or stored is None:
        outcome = Outcome.MISSING
    elif baseline.body_hash != body_hash or not _comparable(metric, stored):
        outcome = Outcome.STALE
    else:
        sign = 1 if metric.better == "higher" else -1
        change = sign * (metric.value / stored.center - 1)
        gain = sign * math.log(metric.value / stored.center)
        spread = SPREAD_FACTOR * stored.sigma_b
        bound = max(relative_bound, spread)
        if abs(gain) > bound:
            outcome = Outcome.IMPROVED if gain > 0 else Outcome.REGRESSED
        else:
            outcome = Outcome.UNDECIDED if spread > UNDECIDABLE_ABOVE else Outcome.SAME
    return Verdict(test, metric_name, metric, outcome, hardware_key, stored, change, bound)


def _comparable(metric: Metric, stored: MetricBaseline) -> bool:
    same_clock = not metric.clock or not stored.clock or metric.clock == stored.clock
    return metric.unit == stored.unit and metric.better == stored.better and same_clock
