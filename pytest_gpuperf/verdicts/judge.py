"""What a figure, held against its record, comes to; the statistics are in rule.py and race.py."""

import datetime
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_gpuperf.baselines.commits import commit_to_race
from pytest_gpuperf.baselines.differences import differing
from pytest_gpuperf.baselines.schema import Baselines, MetricBaseline, TestBaseline
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.expectations import Expectations, Expects
from pytest_gpuperf.verdicts.history import History
from pytest_gpuperf.verdicts.moved import Moved
from pytest_gpuperf.verdicts.opinion import Saying
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.race import Decision, Sequential
from pytest_gpuperf.verdicts.records import Records
from pytest_gpuperf.verdicts.rule import APART, HALF, MOST_CLEARING, MOST_CLEARING_ELSEWHERE, Policy, Rule
from pytest_gpuperf.verdicts.shares import apply_request, change_of, comparable, log_of, logs_of, of_launches, share_of
from pytest_gpuperf.verdicts.shift import Shifts
from pytest_gpuperf.verdicts.verdict import Verdict, invalidate

COUNTED = ("", "allocator", "counter")
"""Clocks of figures that are counted, not timed."""

LAST_DIGIT = 1e-4
"""Counts of a record that differ by less, as a share, are equal: a record keeps five digits."""

SURELY = 2.0
"""How many times what healthy machines lose at most is gross, by references that were not made for a whole run."""


@dataclass(frozen=True, slots=True)
class Arms:
    """What both arms of a race measured of one figure, in order of measurement."""

    old: Sequence[Metric]
    present: Sequence[Metric]
    against: str
    """The old arm, as a user may name it."""


class Judge:
    """Holds the figures of one run against one file of baselines.

    Screening (``screen``) takes the figure of the run's first launch. One that is worse than it should be is a suspect.
    More launches may clear it (``clear``); whatever they leave races (``judge_race``), or, if it cannot, is decided by
    the record alone (``not_raced``).
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
            expects: Says what references or a model expect of a figure without a record; None: nothing.
            strict: Whether a figure without a record fails even if it is as expected.
            now: Returns versions and variables of the run.
        """
        self._policy = policy
        self._hardware_key = hardware_key
        self._gpus = gpus
        self._today = today
        self._now = now
        self._expectations = Expectations(expects, now, strict=strict)
        self._shifts = Shifts()
        self.load(None, ())

    def load(self, baselines: Baselines | None, tests: Iterable[str]) -> None:
        """Takes the records, and shares the false alarms that a run may have among the figures of its tests.

        Args:
            baselines: those of this hardware; None without any.
            tests: node ids of the perf tests that are going to run.
        """
        self._records = Records(baselines, self._gpus)
        self._rule = Rule.of(self._policy, self._records.distinct(), max(1, self._records.count(tests)))

    def conclude(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> list[Verdict]:
        """Returns the verdicts on the figures of one test's first launch."""
        screened = [self.screen(test, name, metric, body_hash) for name, metric in metrics.items()]
        return [self.name_differences(self._expectations.add_variables(verdict)) for verdict in screened]

    def list_unchecked(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> list[str]:
        """Returns the metrics that a test did not check, and that have a baseline of the body that it has now."""
        entry = self._records.entry(test)
        if entry is None or entry.body_hash != body_hash:
            return []
        return [name for name in entry.metrics if name not in metrics]

    def screen(self, test: str, metric_name: str, metric: Metric, body_hash: str) -> Verdict:
        """Holds one figure of the first launch against its record.

        In this order:

        1. INVALID if the machine was not fit for the measurement, or the figure is above the physical limit.
        2. MISSING without a record, or with one of another body, unit, direction or (both named) clock. Without a
           record, references or a model of the hardware may expect it; one that is below is a suspect.
        3. REGRESSED or IMPROVED at once if the figure is counted, all counts of the record are equal, and this one is
           another.
        4. UNDECIDED as a suspect if the loss is one that the screen does not let pass; EXPECTED if it is a known one.
        5. IMPROVED if the figure is better by more than chance explains.
        6. SAME, or UNJUDGED if launches or machines hide a loss of a tenth.

        Whatever it comes to, it is MISSED if the figure's interval is below what the test asks for, and no pass if the
        interval holds that.
        """
        entry = self._records.entry(test)
        stored = None if entry is None else entry.metrics.get(metric_name)
        verdict = Verdict(test, metric_name, metric, Outcome.SAME, self._hardware_key, stored)
        self._expectations.note_body(test, body_hash)
        if (invalid := invalidate(verdict)) is not None:
            # What an unfit machine lost is told all the same.
            return replace(invalid, opinion=None if stored is not None else self._expectations.opinion(verdict))
        return apply_request(self._compare(verdict, entry, body_hash))

    def _compare(self, verdict: Verdict, entry: TestBaseline | None, body_hash: str) -> Verdict:
        stored, metric = verdict.baseline, verdict.metric
        if entry is None or stored is None:
            return self._expectations.judge(verdict)
        if entry.body_hash != body_hash or not comparable(metric, stored.unit, stored.better, stored.clock):
            return replace(verdict, outcome=Outcome.MISSING, reason=Reason.STALE)
        history, y = self._records.history(verdict), log_of(metric.value, stored.better)
        known = entry.expected.get(verdict.metric_name)
        if known is None or not known.holds(self._today):
            self._shifts.note(verdict.test, verdict.metric_name, y - history.center)
        seen = self._rule.find_smallest_slowdown(history)
        found = replace(
            verdict,
            change=change_of(y - history.center, stored.better),
            bound=seen if math.isfinite(seen) else None,
            expected=known,
            elsewhere=self._records.is_elsewhere(stored),
        )
        if _is_exact(stored):
            return self._excuse(self._judge_count(found, y - history.center))
        if self._rule.suspects(history, y, shown=self._is_shown(found)):
            return self._excuse(found.leave_undecided(Reason.SUSPECT))
        if self._rule.is_improved(history, y):
            return replace(found, outcome=Outcome.IMPROVED)
        return self._judge_passing(found)

    def _judge_count(self, found: Verdict, loss: float) -> Verdict:
        """The verdict on a count, of which all launches of the record have the same."""
        if abs(loss) <= max(LAST_DIGIT, self._rule.policy.least):
            return found
        return replace(found, outcome=Outcome.REGRESSED if loss > 0 else Outcome.IMPROVED, reason=Reason.EXACT)

    def _is_shown(self, verdict: Verdict) -> bool:
        """Whether a figure is only shown, unless it lost by far.

        Launches of one machine may hide a loss of a tenth. On other GPUs, what depends on the host may be anything.
        """
        history = self._records.history(verdict)
        return self._rule.is_noisy(history) or (verdict.metric.scope == "host" and not history.known)

    def _judge_passing(self, found: Verdict, reason: Reason | None = None) -> Verdict:
        """The verdict on a figure of which no loss was seen: SAME only if a loss of a tenth would have been.

        A race sees what the record hides: machines that differ.
        """
        hidden = reason is not Reason.NOT_REPRODUCED and self._rule.hides(self._records.history(found))
        if hidden or self._is_shown(found):
            return replace(found, outcome=Outcome.UNJUDGED, reason=Reason.NOISY)
        return replace(found, outcome=Outcome.SAME, reason=reason)

    def _is_gross(self, verdict: Verdict) -> bool:
        """Whether a loss is beyond what machines of one kind differ by, or below the model's floor.

        The record's machines tell how far they differ. If it has only one, references do, if they know the figure.
        """
        history, stored = self._records.history(verdict), verdict.baseline
        assert stored is not None
        loss = log_of(verdict.metric.value, stored.better) - history.center
        if not history.known and self._rule.is_gross(history, history.center + loss):
            return True
        said = self._expectations.opinion(verdict)
        if said is None or said.saying is not Saying.BELOW:
            return False
        if said.usual is not None:
            end = said.low if stored.better == "higher" else said.high
            apart = SURELY * abs(math.log(said.usual / end)) if end else math.inf
            return not history.known and history.machines == 1 and loss > apart
        recorded = self._expectations.opinion(replace(verdict, metric=replace(verdict.metric, value=stored.center)))
        return recorded is not None and recorded.saying is not Saying.BELOW

    def _is_halved(self, verdict: Verdict) -> bool:
        assert verdict.baseline is not None
        loss = log_of(verdict.metric.value, verdict.baseline.better) - self._records.history(verdict).center
        return loss > HALF

    def out_of_time(self, suspect: Verdict, present: Sequence[Metric]) -> Verdict:
        """The verdict on a suspect that no time was left for.

        Args:
            suspect: The screening's verdict, whose launch counts.
            present: A figure of each launch of the present code after that.
        """
        if suspect.baseline is None:
            return suspect.leave_undecided(Reason.BUDGET)
        every = [suspect.metric, *present]
        return self._left_open(self._of(suspect, every, self._records.history(suspect)), Reason.BUDGET)

    def judge_stopped(self, suspect: Verdict, arms: Arms) -> Verdict:
        """The verdict on a suspect whose race no time was left for.

        Args:
            suspect: The screening's verdict, whose launch counts.
            arms: What was measured, whole blocks.
        """
        return self.out_of_time(suspect, arms.present)

    def _left_open(self, verdict: Verdict, reason: Reason, why: str = "") -> Verdict:
        """The verdict on a figure that nothing decided about: REGRESSED if its loss is gross, else UNDECIDED."""
        if self._is_gross(verdict):
            found = replace(verdict, outcome=Outcome.REGRESSED, reason=Reason.GROSS, detail=why)
            return apply_request(self._excuse(found))
        return apply_request(verdict.leave_undecided(reason, why))

    def may_clear(self, suspect: Verdict, present: Sequence[Metric]) -> bool:
        """Whether one more launch of the present code may clear a suspect: if nothing is clear yet, and not too often.

        Args:
            suspect: The screening's verdict, whose launch counts.
            present: A figure of each launch after that.
        """
        if suspect.baseline is None:
            return self._expectations.confirm(suspect, present) is None
        most = MOST_CLEARING if self._records.history(suspect).known else MOST_CLEARING_ELSEWHERE
        found = self._against_record(suspect, present)
        return len(present) < most and found.decision is Decision.OPEN and not self._clears(suspect, present)

    def clear(self, suspect: Verdict, present: Sequence[Metric]) -> Verdict | None:
        """A suspect that launches of the present code clear against the record; None if they leave it open.

        Without a record they decide either way, by what is expected of it.

        Args:
            suspect: The screening's verdict, whose launch counts.
            present: A figure of each launch after that.
        """
        if suspect.baseline is None:
            return self._expectations.confirm(suspect, present)
        history = self._records.history(suspect)
        if not self._clears(suspect, present):
            return None
        every = [suspect.metric, *present]
        return apply_request(self._judge_passing(self._of(suspect, every, history), Reason.CLEARED))

    def commit_to_race(self, suspect: Verdict) -> str | None:
        """The commit that arm A of a race is made of: the clean one of most launches; None if there is none."""
        assert suspect.baseline is not None
        return commit_to_race(self._records.infos(suspect.baseline))

    def judge_race(self, suspect: Verdict, arms: Arms, *, over: bool) -> Verdict | None:
        """What a race makes of a suspect; None if it is still open.

        REGRESSED if the race accuses the present code. If it clears that, ENVIRONMENT if the record's code lost against
        its record, else SAME.

        Args:
            suspect: The screening's verdict.
            arms: What was measured, whole blocks.
            over: Whether there are no more blocks: then what is open is UNDECIDED.
        """
        stored, history = suspect.baseline, self._records.history(suspect)
        assert stored is not None
        old = logs_of(arms.old)
        present = logs_of(arms.present)
        code = self._rule.race(history, old, present, apart=APART, over=over)
        # Of code that the race has cleared, both arms are launches of equal programs.
        environment = self._rule.environment(history, old + present if code.decision is Decision.CLEARED else old)
        if not over and (
            code.decision is Decision.OPEN
            or (code.decision is Decision.CLEARED and environment.decision is Decision.OPEN)
        ):
            return None
        found = replace(
            self._of(suspect, arms.present, history),
            against=arms.against,
            code=share_of(code, stored.better, len(arms.present)),
            environment=share_of(environment, stored.better, len(arms.old)),
        )
        if code.decision is Decision.ACCUSED:
            return apply_request(self._excuse(replace(found, outcome=Outcome.REGRESSED, reason=None)))
        if code.decision is Decision.OPEN:
            return self._left_open(found, Reason.OPEN)
        return self._of_the_environment(found, environment)

    def same_code(self, suspect: Verdict, launches: Sequence[Metric], commit: str) -> Verdict:
        """What launches make of a suspect whose code is that of its record: ENVIRONMENT if they lost, else SAME.

        Args:
            suspect: The screening's verdict, whose launch does not count.
            launches: A figure of each launch after that.
            commit: Of the record, which the checkout holds.
        """
        stored, history = suspect.baseline, self._records.history(suspect)
        assert stored is not None
        environment = self._rule.environment(history, logs_of(launches))
        found = replace(
            self._of(suspect, launches, history),
            against=commit,
            environment=share_of(environment, stored.better, len(launches)),
        )
        return self._of_the_environment(found, environment)

    def _of_the_environment(self, found: Verdict, environment: Sequential) -> Verdict:
        """The verdict on a figure whose code is no slower than that of its record."""
        if environment.decision is Decision.ACCUSED:
            assert found.baseline is not None
            differs = differing([info.environment for info in self._records.infos(found.baseline)], self._now())
            reason = None if self._records.history(found).known or self._is_halved(found) else Reason.ELSEWHERE
            lost = replace(found, outcome=Outcome.ENVIRONMENT, reason=reason, differs=differs)
            return apply_request(self._excuse(lost))
        return apply_request(self._judge_passing(found, Reason.NOT_REPRODUCED))

    def not_raced(self, suspect: Verdict, present: Sequence[Metric], why: str, *, over: bool) -> Verdict | None:
        """What becomes of a suspect that cannot race; None if more launches of the present code may decide.

        On GPUs that the record knows, it decides alone; on others only a gross loss is decided.

        Args:
            suspect: The screening's verdict, whose launch counts.
            present: A figure of each launch after that.
            why: What keeps it from racing, with the cure.
            over: Whether there are no more launches.
        """
        history = self._records.history(suspect)
        if not history.known:
            return self._left_open(self._of(suspect, [suspect.metric, *present], history), Reason.CANNOT_RACE, why)
        decision = self._against_record(suspect, present).decision
        if decision is Decision.OPEN and not over:
            return None
        found = replace(self._of(suspect, [suspect.metric, *present], history), detail=why)
        if decision is Decision.ACCUSED:
            return apply_request(self._excuse(replace(found, outcome=Outcome.REGRESSED, reason=Reason.NOT_RACED)))
        if decision is Decision.CLEARED:
            return apply_request(self._judge_passing(replace(found, detail=""), Reason.CLEARED))
        return self._left_open(found, Reason.OPEN, why)

    def name_differences(self, verdict: Verdict) -> Verdict:
        """Adds to a verdict on a figure that is not the same what differs from the launches of its record."""
        alike = verdict.outcome in (Outcome.SAME, Outcome.MISSING, Outcome.INVALID)
        if verdict.baseline is None or alike or verdict.differs:
            return verdict
        environments = [info.environment for info in self._records.infos(verdict.baseline)]
        return replace(verdict, differs=differing(environments, self._now()))

    def find_move(self, verdict: Verdict) -> Moved | None:
        """Returns the record that a figure moved from; None if it did not move, or has no record.

        Args:
            verdict: by this judge, after all races.
        """
        moved = verdict.outcome in (Outcome.REGRESSED, Outcome.ENVIRONMENT, Outcome.IMPROVED, Outcome.UNDECIDED)
        if not moved or verdict.baseline is None or not verdict.change or verdict.reason is Reason.ASKED:
            return None
        return Moved(self._rule, self._records.history(verdict), gained=verdict.change > 0)

    def choosing(self, verdict: Verdict, now: Mapping[str, str]) -> Verdict:
        """Return the verdict with NCCL's choices that differ from those of most launches of its record.

        Args:
            verdict: Of this judge, with a record.
            now: NCCL's choices in this run.
        """
        assert verdict.baseline is not None
        return replace(verdict, chosen=differing([info.nccl for info in self._records.infos(verdict.baseline)], now))

    def second(self, test: str, metrics: Mapping[str, Metric]) -> None:
        """Takes the figures of a test in a second launch, which is asked for if the first one shifted."""
        for name, metric in metrics.items():
            if (history := self._records.history_of(test, name)) is not None:
                self._shifts.note_second(test, name, log_of(metric.value, metric.better) - history.center)

    @property
    def knows(self) -> bool:
        """Whether the record of a figure knows these GPUs."""
        return self._records.known

    @property
    def moved(self) -> list[str]:
        """The tests whose figures a second launch has to confirm, if the figures of the first one moved all alike."""
        return self._shifts.suspects

    @property
    def shift(self) -> float | None:
        """By how much figures moved all alike in both launches, as a fraction, worse above 0; None if they did not."""
        return self._shifts.shift

    def _clears(self, suspect: Verdict, present: Sequence[Metric]) -> bool:
        return bool(present) and self._rule.clears(self._records.history(suspect), logs_of([suspect.metric, *present]))

    def _against_record(self, suspect: Verdict, present: Sequence[Metric]) -> Sequential:
        return self._rule.against_record(self._records.history(suspect), logs_of([suspect.metric, *present]))

    def _of(self, suspect: Verdict, present: Sequence[Metric], history: History) -> Verdict:
        """The suspect with the figure of several launches."""
        metric = of_launches(present)
        loss = log_of(metric.value, metric.better) - history.center
        return replace(suspect, metric=metric, launches=len(present), change=change_of(loss, metric.better))

    def _excuse(self, verdict: Verdict) -> Verdict:
        """Return the verdict as EXPECTED if a known regression covers it, until its day has passed."""
        known = verdict.expected
        covered = (
            known is not None
            and known.holds(self._today)
            and known.covers(verdict.metric.value, verdict.metric.better, verdict.bound or 0.0)
        )
        return replace(verdict, outcome=Outcome.EXPECTED, reason=None) if covered else verdict


def _is_exact(stored: MetricBaseline) -> bool:
    """Whether a figure is counted, and each of several launches counted the same."""
    counts = [figure.median for figure in stored.launches]
    return len(counts) > 1 and stored.clock in COUNTED and max(counts) - min(counts) <= LAST_DIGIT * abs(max(counts))
