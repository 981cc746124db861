"""What a metric came to, as a value that travels between processes and into files."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pytest_gpuperf.baselines.plain import OPTIONAL
from pytest_gpuperf.baselines.reviewed import KnownRegression
from pytest_gpuperf.baselines.schema import Count, MetricBaseline
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.explanation import Explanation
from pytest_gpuperf.verdicts.opinion import Opinion
from pytest_gpuperf.verdicts.outcome import Effect, Outcome, Reason
from pytest_gpuperf.verdicts.share import Share


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
    """Relative to the record's centre; above 0 is better, whichever direction that is."""
    bound: float | None = None
    """The smallest loss that the screen finds with 95 %, as a fraction."""
    reason: Reason | None = field(default=None, metadata=OPTIONAL)
    """Why the outcome is what it is, if there is more than one way to it."""
    detail: str = field(default="", metadata=OPTIONAL)
    """Why no race decided, in words, with the cure. With the reason OWN_WORDS what happened, and on more lines the
    details."""
    launches: Count = 1
    """How many launches of the present code the metric is the median of."""
    against: str = field(default="", metadata=OPTIONAL)
    """What the present code raced: a commit, as a user may name it; empty without a race."""
    old: float | None = field(default=None, metadata=OPTIONAL)
    """The median of the other code's launches in a race without a record, in the metric's unit."""
    code: Share | None = field(default=None, metadata=OPTIONAL)
    """The present code against the other, both of today."""
    environment: Share | None = field(default=None, metadata=OPTIONAL)
    """The record's own code, as it is today, against the record."""
    differs: Mapping[str, tuple[str, str]] = field(default_factory=dict, metadata=OPTIONAL)
    """Versions and variables by name, as recorded and now; empty if the outcome is SAME."""
    chosen: Mapping[str, tuple[str, str]] = field(default_factory=dict, metadata=OPTIONAL)
    """NCCL's choices that differ, as recorded and now, by the names of ``hardware.nccl_choices``."""
    changed: tuple[str, ...] = field(default=(), metadata=OPTIONAL)
    """If the code made the metric slower: files that changed since the commit that it raced and that its test
    imports."""
    explanation: Explanation | None = field(default=None, metadata=OPTIONAL)
    """What explains that the metric moved; None if nobody looked for it."""
    expected: KnownRegression | None = None
    """The regression that its record says is known, whether the metric is regressed or not."""
    elsewhere: bool = field(default=False, metadata=OPTIONAL)
    """Whether no launch of its record ran on these very GPUs, as far as it is known of all."""

    opinion: Opinion | None = field(default=None, metadata=OPTIONAL)
    """What references or a model of the hardware expect of a metric that has no record."""

    @property
    def effect(self) -> Effect:
        """What it makes of its test; a metric without a record passes if it is as expected, or nothing is expected."""
        passes = self.reason in (Reason.PLAUSIBLE, Reason.NOT_JUDGED)
        return Effect.PASSES if passes else self.outcome.effect

    @property
    def fails(self) -> bool:
        """Whether a test with such a metric fails."""
        return self.effect is Effect.FAILS

    @property
    def suspect(self) -> bool:
        """Whether it was worse in the first launch, and nothing has decided yet."""
        return self.reason is Reason.SUSPECT

    def leave_undecided(self, reason: Reason, detail: str = "") -> "Verdict":
        """Return the verdict as UNDECIDED."""
        return replace(self, outcome=Outcome.UNDECIDED, reason=reason, detail=detail)


def judge_unjudged(
    test: str,
    metrics: Mapping[str, Metric],
    hardware_key: str,
    outcome: Outcome = Outcome.UNJUDGED,
    *,
    smoke: bool = False,
) -> list[Verdict]:
    """Metrics that are only shown or recorded; one above its physical limit is a broken measurement all the same.

    Args:
        test: Node id.
        metrics: By name.
        hardware_key: Names the machine.
        outcome: What becomes of the others.
        smoke: Whether the run only tries bodies, whose few samples break no limit that counts.
    """

    def find(name: str, metric: Metric) -> Verdict:
        verdict = Verdict(test, name, metric, outcome, hardware_key)
        return verdict if (invalid := invalidate(verdict, smoke=smoke)) is None else invalid

    return [find(name, metric) for name, metric in metrics.items()]


def invalidate(verdict: Verdict, *, smoke: bool = False) -> Verdict | None:
    """Return the verdict as INVALID, with the reason; None if the measurement is valid."""
    if verdict.metric.invalid:
        return replace(verdict, outcome=Outcome.INVALID, reason=Reason.UNFIT)
    if verdict.metric.above_limit and not smoke:
        return replace(verdict, outcome=Outcome.INVALID, reason=Reason.ABOVE_LIMIT)
    return None
