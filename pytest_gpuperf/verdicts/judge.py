"""What a figure, held against its baseline, comes to; the statistics are in rule.py."""

import datetime
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pytest_gpuperf.baselines.plain import cut
from pytest_gpuperf.baselines.reviewed import MetricPolicy
from pytest_gpuperf.baselines.schema import LEAST_LAUNCHES, Baselines, LaunchFigure, MetricBaseline, TestBaseline
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.controls import Controls
from pytest_gpuperf.verdicts.history import History
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.rule import EXPLAINED, LARGEST_LOSS, Policy, Rule
from pytest_gpuperf.verdicts.shift import distinct, shift_of
from pytest_gpuperf.verdicts.verdict import Verdict


class Judge:
    """Holds the figures of one run against one file of baselines.

    Screening (``screen``) takes the figure of the run's first launch. One that is worse than it should be is a
    SUSPECT; its test is measured in ``launches`` fresh launches, which alone decide (``confirm``).
    """

    def __init__(
        self,
        hardware_key: str,
        baselines: Baselines | None,
        tests: Iterable[str],
        policy: Policy,
        *,
        gpus: str = "",
        today: datetime.date = datetime.date.max,
    ) -> None:
        """Shares the false alarms that a run may have among the figures of its tests.

        Args:
            hardware_key: Names the machine.
            baselines: Those of this hardware; None where there are none.
            tests: Node ids of the perf tests that are going to run.
            policy: What a run may get wrong, and which loss it must find.
            gpus: Tells this machine's GPUs from others of their kind, as in ``LaunchInfo.gpus``.
            today: Known regressions that hold on this day tell nothing of the run as a whole; by default none holds.

        Raises:
            ValueError: A metric's own policy and this one could decide nothing together.
        """
        self._hardware_key = hardware_key
        self._gpus = gpus
        self._today = today
        self._launches = {} if baselines is None else baselines.launches
        stored = {} if baselines is None else baselines.tests
        self._histories = {
            (test, name): self._history(metric)
            for test, entry in stored.items()
            for name, metric in entry.metrics.items()
        }
        self._tests = {test: self._of_these_gpus(entry) for test, entry in stored.items()}
        selected = [self._tests[test] for test in tests if test in self._tests]
        checks = max(1, sum(len(test.metrics) for test in selected))
        histories = [
            known
            for test, entry in stored.items()
            for known in distinct([self._histories[test, n] for n in entry.metrics])
        ]
        if any(known.launches > 1 for known in histories):
            self.rule = Rule.of(policy, histories, checks)
        else:
            self.rule = Rule(policy, checks, prior=0.0, prior_total=0.0)  # no spread is known, so nothing is decided
        self._rules = {
            (test, name): _with_its_policy(self.rule, bounds, f"{cut(test)} {cut(name)}")
            for test, entry in stored.items()
            for name, bounds in entry.policy.items()
        }
        self.controls = Controls(self._launches, gpus, policy)
        self._losses: dict[tuple[str, str], tuple[float, bool]] = {}
        """By test and metric: the loss, and whether a GPU was at its power limit."""

    @property
    def moved(self) -> Mapping[str, float]:
        """What of the control workload moved, by how much, as a fraction, slower above 0."""
        return {name: math.expm1(loss) for name, loss in self.controls.moved.items()}

    def explained(
        self, regressed: Verdict, world_size: int, *, at_limit: bool, center: float | None = None
    ) -> Verdict | None:
        """What becomes of a regression that the control workload explains; None if it does not.

        Only times and rates are explained: a slower machine moves no more bytes.

        Args:
            regressed: What fresh launches came to.
            world_size: Ranks that the test ran on.
            at_limit: Whether a GPU was at its power limit meanwhile.
            center: Where the figure was expected, in its unit; by default where it was in the launches that the
                control workload is held against.
        """
        stored = regressed.baseline
        assert stored is not None
        if not (stored.unit == "s" or stored.unit.endswith("/s")):
            return None
        for name in self.controls.parts(world_size, at_limit=at_limit):
            reference = self.controls.reference(name, _ids(stored))
            if reference is None:
                continue
            known = History.of(_logs(stored, [f for f in stored.launches if f.launch in reference.launches]))
            usual = known.center if center is None else _loss(center, stored)
            slower = self.controls.slower(name, reference.launches)
            loss = _loss(regressed.metric.value, stored) - usual
            if self._rule_of(regressed).explains(slower, loss, known, regressed.launches):
                return regressed.shifted(math.expm1(slower), of_the_gpus=at_limit and reference.same_software)
        return None

    def _of_these_gpus(self, entry: TestBaseline) -> TestBaseline:
        """Launches of the very GPUs are the baseline, where there are enough of them."""
        metrics = {name: replace(metric, launches=self._own(metric)) for name, metric in entry.metrics.items()}
        return replace(entry, metrics=metrics)

    def _own(self, stored: MetricBaseline) -> tuple[LaunchFigure, ...]:
        own = tuple(figure for figure in stored.launches if self._gpus_of(figure.launch) == self._gpus != "")
        return own if len(own) >= LEAST_LAUNCHES else stored.launches

    def _history(self, stored: MetricBaseline) -> History:
        """Of all launches; of those of the very GPUs, where they are the baseline, beside what the others scatter."""
        everything, own = _logs(stored, stored.launches), _logs(stored, self._own(stored))
        if len(own) == len(everything):
            return History.of(everything)
        machines: dict[str, list[float]] = {}
        for figure, loss in zip(stored.launches, everything, strict=True):
            machines.setdefault(self._gpus_of(figure.launch), []).append(loss)
        return History.within(list(machines.values())).of_these(own)

    def _more(self, stored: MetricBaseline, needed: int) -> int:
        """How many launches on this machine make so many, of those that count then."""
        own = sum(self._gpus_of(figure.launch) == self._gpus != "" for figure in stored.launches)
        more = max(1, needed - len(stored.launches))
        alone = bool(self._gpus) and own + more >= LEAST_LAUNCHES
        return max(more, needed - own) if alone else more

    def _gpus_of(self, launch: str) -> str:
        return self._launches[launch].gpus if launch in self._launches else ""

    def _elsewhere(self, stored: MetricBaseline) -> bool:
        known = {self._gpus_of(id_) for id_ in _ids(stored)}
        return bool(self._gpus) and not known & {self._gpus, ""}

    def entry(self, test: str) -> TestBaseline | None:
        """What is stored of a test; None if nothing is."""
        return self._tests.get(test)

    def screen(self, test: str, metric_name: str, metric: Metric, body_hash: str) -> Verdict:
        """Holds one figure of the first launch against its baseline.

        In this order:

        1. INVALID where the machine was not fit for the measurement.
        2. BROKEN above the physical limit, whatever the baseline says.
        3. MISSED where the figure's interval is below what the test asks for.
        4. MISSING without a baseline.
        5. STALE where the baseline is of another body, unit, direction or (both named) clock.
        6. SUSPECT where the loss is one that screening does not let pass.
        7. DOUBTFUL where the figure's interval holds what the test asks for.
        8. IMPROVED where one launch is better by GAIN, or what is to be found of a loss if that is less, and by more
           than its spread explains.
        9. SAME.
        """
        baseline = self._tests.get(test)
        stored = None if baseline is None else baseline.metrics.get(metric_name)
        verdict = Verdict(
            test,
            metric_name,
            metric,
            Outcome.SAME,
            self._hardware_key,
            stored,
            elsewhere=stored is not None and self._elsewhere(stored),
            policy=None if baseline is None else baseline.policy.get(metric_name),
        )
        if metric.invalid:
            return replace(verdict, outcome=Outcome.INVALID)
        if metric.above_limit:
            return replace(verdict, outcome=Outcome.BROKEN)
        return _worse(self._compared(verdict, baseline, body_hash), asked(metric))

    def _compared(self, verdict: Verdict, baseline: TestBaseline | None, body_hash: str) -> Verdict:
        """The figure held against its baseline, whatever else the test asks for."""
        test, metric_name, metric, stored = verdict.test, verdict.metric_name, verdict.metric, verdict.baseline
        if baseline is None or stored is None:
            return replace(verdict, outcome=Outcome.MISSING)
        if baseline.body_hash != body_hash or not _comparable(metric, stored):
            return replace(verdict, outcome=Outcome.STALE)
        known, loss = self._histories[test, metric_name], _loss(metric.value, stored)
        expected = baseline.expected.get(metric_name)
        if expected is None or not expected.holds(self._today):
            self._losses[test, metric_name] = loss - known.center, metric.power_capped
        outcome = Outcome.SAME
        rule = self._rule_of(verdict)
        if rule.suspects(known, loss):
            outcome = Outcome.SUSPECT
        elif rule.improved(known, loss):
            outcome = Outcome.IMPROVED
        # What the screen lets pass by a bound of the metric's own is no less than that.
        least = 0.0 if verdict.policy is None else rule.policy.detect
        bound = _finite(max(least, rule.detectable(known, 1)))
        return replace(verdict, outcome=outcome, change=_change(metric.value, stored), bound=bound)

    def launches(self, suspect: Verdict) -> int:
        """How many fresh launches a suspect gets; 0 where nothing is known of its spread, and none would help."""
        return self._rule_of(suspect).rounds(self._history_of(suspect))

    def confirm(self, suspect: Verdict, figures: Sequence[Metric]) -> Verdict:
        """What fresh launches make of a suspect: REGRESSED or SAME.

        UNDECIDED without any; and where they raise no alarm, but a loss that is to be found could hide from so many.
        MISSED or DOUBTFUL, if that is worse, where most of them do not reach what the test asks for.

        Args:
            suspect: The screening's verdict.
            figures: One of each fresh launch.
        """
        rule, known, stored = self._rule_of(suspect), self._history_of(suspect), suspect.baseline
        assert stored is not None
        if not figures:
            needed = rule.needed(known)
            return replace(
                suspect,
                outcome=Outcome.UNDECIDED,
                bound=_finite(rule.detectable(known, rule.policy.kmax)),
                needed=needed,
                more=None if needed is None else self._more(stored, needed),
            )
        found = rule.confirm(known, [_loss(figure.value, stored) for figure in figures])
        value = statistics.median(figure.value for figure in figures)
        ends = sorted((_change_by(found.lower, stored), _change_by(found.upper, stored)))
        hidden = not found.regressed and rule.launches(known) is None
        cleared = Outcome.UNDECIDED if hidden else Outcome.SAME
        needed = rule.needed(known) if hidden else None
        metric = replace(suspect.metric, value=value, q1=None, q3=None, interval=_interval(figures))
        confirmed = replace(
            suspect,
            metric=metric,
            outcome=Outcome.REGRESSED if found.regressed else cleared,
            change=_change(value, stored),
            bound=_finite(rule.detectable(known, len(figures))),
            launches=len(figures),
            interval=(ends[0], ends[1]),
            needed=needed,
            more=None if needed is None else self._more(stored, needed),
        )
        return _worse(confirmed, asked(metric))

    @property
    def shift(self) -> float | None:
        """By how much the figures of this run moved all alike, as a fraction, worse above 0; None if they did not.

        Where the GPUs are slower at their power limit, the figures there have that reason of their own.
        """
        loss = self._shift
        return None if loss is None else math.expm1(loss)

    def moved_with_the_run(self, suspect: Verdict) -> bool:
        """Whether a suspect lost no more than most figures of this run did, or than that explains.

        One that went the other way, or lost far more, has a reason of its own, and fresh launches to tell.
        """
        shift = self._shift
        if shift is None:
            return False
        stored, known, rule = suspect.baseline, self._history_of(suspect), self._rule_of(suspect)
        assert stored is not None
        loss = _loss(suspect.metric.value, stored) - known.center
        if shift < 0 or loss <= 0:
            return shift < 0 and loss <= 0
        # Where nothing is known of its spread, none of it is chance.
        return rule.explains(shift, loss, known, 1) if rule.rounds(known) else loss <= EXPLAINED * shift

    @property
    def _shift(self) -> float | None:
        without = self.controls.slower_at_limit
        tests: dict[str, dict[str, tuple[float, History]]] = {}
        for (test, name), (loss, at_limit) in self._losses.items():
            if not (without and at_limit):
                tests.setdefault(test, {})[name] = loss, self._histories[test, name]
        return shift_of(tests)

    def _history_of(self, verdict: Verdict) -> History:
        return self._histories[verdict.test, verdict.metric_name]

    def _rule_of(self, verdict: Verdict) -> Rule:
        return self._rules.get((verdict.test, verdict.metric_name), self.rule)


def _with_its_policy(rule: Rule, bounds: MetricPolicy, whose: str) -> Rule:
    policy = rule.policy
    detect = policy.detect if bounds.detect is None else bounds.detect
    min_effect = policy.min_effect if bounds.min_effect is None else bounds.min_effect
    try:
        return replace(rule, policy=replace(policy, detect=detect, min_effect=min_effect))
    except ValueError as error:
        raise ValueError(f"policy of {whose}: {error}") from error


def _finite(bound: float) -> float | None:
    return bound if math.isfinite(bound) else None


def asked(metric: Metric) -> Outcome | None:
    """MISSED or DOUBTFUL where the figure's interval does not reach what the test asks for; else None."""
    if metric.at_least is None or metric.interval is None:
        return None
    low, high = metric.interval
    if high < metric.at_least:
        return Outcome.MISSED
    return Outcome.DOUBTFUL if low < metric.at_least else None


def _worse(compared: Verdict, short: Outcome | None) -> Verdict:
    """The worse of what a figure is beside its baseline and beside what the test asks for."""
    passes = compared.outcome in (Outcome.SAME, Outcome.IMPROVED)
    return replace(compared, outcome=short) if short is Outcome.MISSED or (short and passes) else compared


def _interval(figures: Sequence[Metric]) -> tuple[float, float] | None:
    """That of the launch in the middle: below a bound where those of most launches are."""
    intervals = [figure.interval for figure in figures if figure.interval is not None]
    if len(intervals) < len(figures):
        return None
    return statistics.median(low for low, _ in intervals), statistics.median(high for _, high in intervals)


def _logs(stored: MetricBaseline, figures: Sequence[LaunchFigure]) -> list[float]:
    return [_loss(figure.median, stored) for figure in figures]


def _ids(stored: MetricBaseline) -> list[str]:
    return [figure.launch for figure in stored.launches]


def _loss(value: float, stored: MetricBaseline) -> float:
    # A logarithm gives a time, and the throughput made from it, one verdict.
    return math.log(value) if stored.better == "lower" else -math.log(value)


def _change(value: float, stored: MetricBaseline) -> float:
    return _change_by(_loss(value, stored) - _loss(stored.center, stored), stored)


def _change_by(loss: float, stored: MetricBaseline) -> float:
    return math.expm1(min(-loss, LARGEST_LOSS)) if stored.better == "higher" else -math.expm1(min(loss, LARGEST_LOSS))


def _comparable(metric: Metric, stored: MetricBaseline) -> bool:
    same_clock = not metric.clock or not stored.clock or metric.clock == stored.clock
    return metric.unit == stored.unit and metric.better == stored.better and same_clock
