"""What a figure came to, as a value that travels between processes and into files."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pytest_gpuperf.baselines.expected import Expected
from pytest_gpuperf.baselines.json_fields import Fields
from pytest_gpuperf.baselines.metric_baseline import MetricBaseline
from pytest_gpuperf.baselines.metric_policy import MetricPolicy
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.outcome import Outcome


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
    """The smallest loss that could have been told from the baseline, as a fraction."""
    launches: int = 1
    """How many launches the figure is the median of."""
    interval: tuple[float, float] | None = None
    """Of the change, where fresh launches confirmed or cleared it."""
    needed: int | None = None
    """Of an undecided figure: how many launches of its baseline would do; None if no number would."""
    more: int | None = None
    """How many of these have to be recorded still."""
    expected: Expected | None = None
    """The regression that its baseline says is known, whether the figure is regressed or not."""
    control: float | None = None
    """By how much the control workload was slower, as a fraction, where that explains the loss."""
    of_the_gpus: bool = False
    """Whether what explains it is how fast these GPUs are at their power limit, and no other software."""
    elsewhere: bool = False
    """Whether no launch of its baseline ran on these very GPUs, as far as it is known of all."""
    policy: MetricPolicy | None = None
    """What its baseline asks for instead of the run's policy."""

    def shifted(self, control: float | None = None, *, of_the_gpus: bool = False) -> "Verdict":
        """The same where the whole run moved, or the control workload did: this figure tells nothing of its own."""
        return replace(self, outcome=Outcome.SHIFTED, control=control, of_the_gpus=of_the_gpus)

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
            "launches": self.launches,
            "interval": None if self.interval is None else list(self.interval),
            "needed": self.needed,
            "more": self.more,
            "expected": None if self.expected is None else self.expected.to_json(),
            "control": self.control,
            "of_the_gpus": self.of_the_gpus,
            "elsewhere": self.elsewhere,
            "policy": None if self.policy is None else self.policy.to_json(),
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
            outcome=Outcome.of(fields.choice("outcome", *(outcome.value for outcome in Outcome))),
            hardware_key=fields.text("hardware_key"),
            baseline=baseline,
            change=fields.optional_number("change"),
            bound=fields.optional_number("bound"),
            launches=fields.integer("launches"),
            interval=fields.optional_interval("interval"),
            needed=None if fields.values.get("needed") is None else fields.integer("needed"),
            more=None if fields.values.get("more") is None else fields.integer("more"),
            expected=(None if fields.values.get("expected") is None else Expected.from_json(fields.child("expected"))),
            control=fields.optional_number("control"),
            of_the_gpus=fields.boolean("of_the_gpus") if "of_the_gpus" in fields.values else False,
            elsewhere=fields.boolean("elsewhere") if "elsewhere" in fields.values else False,
            policy=None if fields.values.get("policy") is None else MetricPolicy.from_json(fields.child("policy")),
        )


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
