"""What a figure came to, as a value that travels between processes and into files."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeAlias

from pytest_gpuperf.baselines.plain import OPTIONAL, Checked, Told
from pytest_gpuperf.baselines.reviewed import KnownRegression, MetricPolicy
from pytest_gpuperf.baselines.schema import Count, MetricBaseline
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.outcome import Outcome

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


def unjudged(
    test: str,
    metrics: Mapping[str, Metric],
    hardware_key: str,
    outcome: Outcome = Outcome.UNJUDGED,
    *,
    smoke: bool = False,
) -> list[Verdict]:
    """Figures that are only shown or recorded; one above its physical limit is a broken measurement all the same.

    Args:
        test: Node id.
        metrics: By name.
        hardware_key: Names the machine.
        outcome: What becomes of the others.
        smoke: Whether the run only tries bodies, whose few samples break no limit that counts.
    """

    def found(metric: Metric) -> Outcome:
        if metric.invalid:
            return Outcome.INVALID
        return Outcome.BROKEN if metric.above_limit and not smoke else outcome

    return [Verdict(test, name, metric, found(metric), hardware_key) for name, metric in metrics.items()]
