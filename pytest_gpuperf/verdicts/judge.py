"""What a metric, held against its record, comes to; the statistics are in rule.py."""

import datetime
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from pytest_gpuperf.baselines.differences import differing
from pytest_gpuperf.baselines.schema import Baselines, MetricBaseline, TestBaseline
from pytest_gpuperf.figures.comparable import find_mismatch
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.expectations import Expectations, Expects
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.records import Records
from pytest_gpuperf.verdicts.rule import Policy, Rule
from pytest_gpuperf.verdicts.shares import apply_request, compute_loss_log, convert_loss_to_change
from pytest_gpuperf.verdicts.shift import Shifts
from pytest_gpuperf.verdicts.verdict import Verdict, invalidate

COUNTED = ("", "allocator", "counter")
"""Clocks of metrics that are counted, not timed."""

LAST_DIGIT = 1e-4
"""Counts of a record that differ by less, as a share, are equal: a record keeps five digits."""


class Judge:
    """Holds the metrics of a run's first launch against one file of baselines.

    One that is worse than it should be is a suspect: undecided, unless a feature launches its test again. Whoever
    decides about it uses the records, the rule and the expectations of this judge.
    """

    def __init__(
        self,
        hardware_key: str,
        policy: Policy,
        *,
        gpus: str = "",
        today: datetime.date = datetime.date.max,
        expects: Expects | None = None,
        strict: bool = True,
        now: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """Knows no record yet.

        Args:
            hardware_key: Names the machine.
            policy: What a run may get wrong, and which loss it must find.
            gpus: Identifies this machine's GPUs, as ``LaunchInfo.gpus`` does.
            today: The day by which known regressions hold.
            expects: Says what references or a model expect of a metric without a record; None: nothing.
            strict: Whether a metric without a record fails even if it is as expected.
            now: Returns versions and variables of the run.
        """
        self._policy = policy
        self._hardware_key = hardware_key
        self._gpus = gpus
        self._today = today
        self.now = now
        """Returns versions and variables of the run."""
        self.expectations = Expectations(expects, now, strict=strict)
        self.shifts = Shifts()
        """The losses that tell whether all metrics moved alike."""
        self.load(None, ())

    def load(self, baselines: Baselines | None, tests: Iterable[str]) -> None:
        """Takes the records, and shares the false alarms that a run may have among the metrics of its tests.

        Args:
            baselines: those of this hardware; None without any.
            tests: node ids of the perf tests that are going to run.
        """
        self.records = Records(baselines, self._gpus)
        self.rule = Rule.of(self._policy, self.records.list_distinct(), max(1, self.records.count(tests)))

    def conclude(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> list[Verdict]:
        """Returns the verdicts on the metrics of one test's first launch."""
        screened = [self.screen(test, name, metric, body_hash) for name, metric in metrics.items()]
        return [self.name_differences(self.expectations.add_variables(verdict)) for verdict in screened]

    def list_unchecked(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> list[str]:
        """Returns the metrics that a test did not check, and that have a baseline of the body that it has now."""
        entry = self.records.entry(test)
        if entry is None or entry.body_hash != body_hash:
            return []
        return [name for name in entry.metrics if name not in metrics]

    def screen(self, test: str, metric_name: str, metric: Metric, body_hash: str) -> Verdict:
        """Holds one metric of the first launch against its record.

        In this order:

        1. INVALID if the machine was not fit for the measurement, or the metric is above the physical limit.
        2. MISSING without a record, or with one of another body, unit, direction or (both named) clock. Without a
           record, references or a model of the hardware may expect it; one that is below is a suspect.
        3. REGRESSED or IMPROVED at once if the metric is counted, all counts of the record are equal, and this one is
           another.
        4. UNDECIDED as a suspect if the loss is one that the screen does not let pass; EXPECTED if it is a known one.
        5. IMPROVED if the metric is better by more than chance explains.
        6. SAME, or UNJUDGED if launches or machines hide a loss of a tenth.

        Whatever it comes to, it is MISSED if the metric's interval is below what the test asks for, and no pass if the
        interval holds that.
        """
        entry = self.records.entry(test)
        stored = None if entry is None else entry.metrics.get(metric_name)
        verdict = Verdict(test, metric_name, metric, Outcome.SAME, self._hardware_key, stored)
        self.expectations.note_body(test, body_hash)
        if (invalid := invalidate(verdict)) is not None:
            # What an unfit machine lost is told all the same.
            return replace(invalid, opinion=None if stored is not None else self.expectations.opinion(verdict))
        return apply_request(self._compare(verdict, entry, body_hash))

    def _compare(self, verdict: Verdict, entry: TestBaseline | None, body_hash: str) -> Verdict:
        stored, metric = verdict.baseline, verdict.metric
        if entry is None or stored is None:
            return self.expectations.judge(verdict)
        if entry.body_hash != body_hash or find_mismatch(metric, stored) is not None:
            return replace(verdict, outcome=Outcome.MISSING, reason=Reason.STALE)
        history, y = self.records.history(verdict), compute_loss_log(metric.value, stored.better)
        known = entry.expected.get(verdict.metric_name)
        if known is None or not known.holds(self._today):
            self.shifts.note(verdict.test, verdict.metric_name, y - history.center)
        seen = self.rule.find_smallest_slowdown(history)
        found = replace(
            verdict,
            change=convert_loss_to_change(y - history.center, stored.better),
            bound=seen if math.isfinite(seen) else None,
            expected=known,
            elsewhere=self.records.is_elsewhere(stored),
        )
        if _is_exact(stored):
            return self.excuse(self._judge_count(found, y - history.center))
        if self.rule.suspects(history, y, shown=self._is_shown(found)):
            return self.excuse(found.leave_undecided(Reason.SUSPECT))
        if self.rule.is_improved(history, y):
            return replace(found, outcome=Outcome.IMPROVED)
        return self.judge_passing(found)

    def _judge_count(self, found: Verdict, loss: float) -> Verdict:
        """The verdict on a count, of which all launches of the record have the same."""
        if abs(loss) <= max(LAST_DIGIT, self.rule.policy.least):
            return found
        return replace(found, outcome=Outcome.REGRESSED if loss > 0 else Outcome.IMPROVED, reason=Reason.EXACT)

    def _is_shown(self, verdict: Verdict) -> bool:
        """Whether a metric is only shown, unless it lost by far.

        Launches of one machine may hide a loss of a tenth. On other GPUs, what depends on the host may be anything.
        """
        history = self.records.history(verdict)
        return self.rule.is_noisy(history) or (verdict.metric.scope == "host" and not history.known)

    def judge_passing(self, found: Verdict, reason: Reason | None = None) -> Verdict:
        """The verdict on a metric of which no loss was seen: SAME only if a loss of a tenth would have been.

        A race sees what the record hides: machines that differ.
        """
        hidden = reason is not Reason.NOT_REPRODUCED and self.rule.hides(self.records.history(found))
        if hidden or self._is_shown(found):
            return replace(found, outcome=Outcome.UNJUDGED, reason=Reason.NOISY)
        return replace(found, outcome=Outcome.SAME, reason=reason)

    def name_differences(self, verdict: Verdict) -> Verdict:
        """Adds to a verdict on a metric that is not the same what differs from the launches of its record."""
        alike = verdict.outcome in (Outcome.SAME, Outcome.MISSING, Outcome.INVALID)
        if verdict.baseline is None or alike or verdict.differs:
            return verdict
        environments = [info.environment for info in self.records.list_launch_infos(verdict.baseline)]
        return replace(verdict, differs=differing(environments, self.now()))

    @property
    def knows(self) -> bool:
        """Whether the record of a metric knows these GPUs."""
        return self.records.known

    @property
    def shift(self) -> float | None:
        """By how much metrics moved all alike in both launches, as a fraction, worse above 0; None if they did not."""
        return self.shifts.shift

    def excuse(self, verdict: Verdict) -> Verdict:
        """Return the verdict as EXPECTED if a known regression covers it, until its day has passed."""
        known = verdict.expected
        covered = (
            known is not None
            and known.holds(self._today)
            and known.covers(verdict.metric.value, verdict.metric.better, verdict.bound or 0.0)
        )
        return replace(verdict, outcome=Outcome.EXPECTED, reason=None) if covered else verdict


def _is_exact(stored: MetricBaseline) -> bool:
    """Whether a metric is counted, and each of several launches counted the same."""
    counts = [figure.median for figure in stored.launches]
    return len(counts) > 1 and stored.clock in COUNTED and max(counts) - min(counts) <= LAST_DIGIT * abs(max(counts))
