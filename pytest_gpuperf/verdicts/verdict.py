"""What a figure came to, as a value that travels between processes and into files."""

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Annotated, TypeAlias

from pytest_gpuperf.baselines.plain import OPTIONAL, Checked, Told
from pytest_gpuperf.baselines.reviewed import KnownRegression, MetricPolicy
from pytest_gpuperf.baselines.schema import Count, MetricBaseline
from pytest_gpuperf.figures.metric import Metric


class Outcome(Enum):
    """What a figure turned out to be."""

    SAME = "same"
    IMPROVED = "improved"
    REGRESSED = "regressed"
    SUSPECT = "suspect"
    """Worse in its first launch than it should be; fresh launches decide."""
    UNDECIDED = "undecided"
    """Suspect, and no alarm, but of a spread so wide that a loss could hide from any number of launches."""
    SHIFTED = "shifted"
    """Worse where most figures moved alike, or no more than the control workload explains: tells nothing of its own."""
    MISSING = "missing"
    STALE = "stale"
    """The baseline is of another test body, unit, direction or clock."""
    INVALID = "invalid"
    """The machine was not fit for the measurement."""
    BROKEN = "broken"
    """Above the physical limit: the measurement is wrong."""
    MISSED = "missed"
    """Surely below what the test asks for, whatever the baseline."""
    DOUBTFUL = "doubtful"
    """Perhaps below what the test asks for."""
    RECORDED = "recorded"
    """Became the baseline; the caller says so, judge never does."""
    UNJUDGED = "unjudged"
    """Only shown; the caller says so, judge never does."""
    EXPECTED = "expected"
    """Regressed, as is known until a date; the caller says so, judge never does."""


_Interval: TypeAlias = Annotated[
    tuple[float, float],
    Checked(lambda ends: ends[0] <= ends[1], "the smaller first"),
    Told("two finite numbers, the smaller first, or null"),
]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one metric of one test came to on one machine; it travels between processes and into files."""

    test: str
    metric_name: str
    metric: Metric
    outcome: Outcome
    hardware_key: str
    baseline: MetricBaseline | None = None
    change: float | None = None
    """Relative to the baseline's centre; above 0 is better, whichever direction that is."""
    bound: float | None = None
    """The smallest loss that could have been told from the baseline, as a fraction."""
    launches: Count = 1
    """How many launches the figure is the median of."""
    interval: _Interval | None = None
    """Of the change, where fresh launches confirmed or cleared it."""
    needed: Count | None = None
    """Of an undecided figure: how many launches of its baseline would do; None if no number would."""
    more: Count | None = None
    """How many of these have to be recorded still."""
    expected: KnownRegression | None = None
    """The regression that its baseline says is known, whether the figure is regressed or not."""
    control: float | None = None
    """By how much the control workload was slower, as a fraction, where that explains the loss."""
    of_the_gpus: bool = field(default=False, metadata=OPTIONAL)
    """Whether what explains it is how fast these GPUs are at their power limit, and no other software."""
    elsewhere: bool = field(default=False, metadata=OPTIONAL)
    """Whether no launch of its baseline ran on these very GPUs, as far as it is known of all."""
    policy: MetricPolicy | None = field(default=None, metadata=OPTIONAL)
    """What its baseline asks for instead of the run's policy."""

    def shifted(self, control: float | None = None, *, of_the_gpus: bool = False) -> "Verdict":
        """The same where the whole run moved, or the control workload did: this figure tells nothing of its own."""
        return replace(self, outcome=Outcome.SHIFTED, control=control, of_the_gpus=of_the_gpus)
