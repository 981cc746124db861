"""What later launches and races make of a suspect, that is a metric that the run's judge left undecided."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_gpuperf.baselines.commits import commit_to_race
from pytest_gpuperf.baselines.differences import differing
from pytest_gpuperf.features.racing.blocks import Blocks
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.history import History
from pytest_gpuperf.verdicts.judge import Judge
from pytest_gpuperf.verdicts.opinion import Saying
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.race import Decision, Sequential
from pytest_gpuperf.verdicts.rule import APART, HALF, MOST_CLEARING, MOST_CLEARING_ELSEWHERE
from pytest_gpuperf.verdicts.shares import (
    apply_request,
    compute_loss_log,
    compute_loss_logs,
    convert_loss_to_change,
    make_share,
    merge_launches,
)
from pytest_gpuperf.verdicts.verdict import Verdict

SURELY = 2.0
"""How many times what healthy machines lose at most is gross, by references that were not made for a whole run."""


class SuspectJudge:
    """Decides about the suspects of a run that is held against baselines.

    More launches may clear a suspect (``clear``); whatever they leave races (``judge_race``), or, if it cannot, is
    decided by its record alone (``not_raced``).
    """

    def __init__(self, judge: Judge) -> None:
        """Has decided nothing yet.

        Args:
            judge: found the suspects, and has the records.
        """
        self._judge = judge

    @property
    def moved(self) -> list[str]:
        """The tests whose metrics a second launch has to confirm, if the metrics of the first one moved all alike."""
        return self._judge.shifts.suspects

    def second(self, test: str, metrics: Mapping[str, Metric]) -> None:
        """Takes the metrics of a test in a second launch, which is asked for if the first one shifted."""
        for name, metric in metrics.items():
            if (history := self._judge.records.find_history(test, name)) is not None:
                self._judge.shifts.note_second(
                    test, name, compute_loss_log(metric.value, metric.better) - history.center
                )

    def name_differences(self, verdict: Verdict) -> Verdict:
        """Adds to a verdict on a metric that is not the same what differs from the launches of its record."""
        return self._judge.name_differences(verdict)

    def out_of_time(self, suspect: Verdict, present: Sequence[Metric]) -> Verdict:
        """The verdict on a suspect that no time was left for.

        Args:
            suspect: The screening's verdict, whose launch counts.
            present: What each launch of the present code after that measured.
        """
        if suspect.baseline is None:
            return suspect.leave_undecided(Reason.BUDGET)
        every = [suspect.metric, *present]
        return self._judge_left_open(self._replace_metric(suspect, every, self._find_history(suspect)), Reason.BUDGET)

    def judge_stopped(self, suspect: Verdict, blocks: Blocks) -> Verdict:
        """The verdict on a suspect whose race no time was left for.

        Args:
            suspect: The screening's verdict, whose launch counts.
            blocks: what was measured.
        """
        return self.out_of_time(suspect, blocks.present)

    def _judge_left_open(self, verdict: Verdict, reason: Reason, why: str = "") -> Verdict:
        """The verdict on a metric that nothing decided about: REGRESSED if its loss is gross, else UNDECIDED."""
        if self._is_gross(verdict):
            found = replace(verdict, outcome=Outcome.REGRESSED, reason=Reason.GROSS, detail=why)
            return apply_request(self._judge.excuse(found))
        return apply_request(verdict.leave_undecided(reason, why))

    def may_clear(self, suspect: Verdict, present: Sequence[Metric]) -> bool:
        """Whether one more launch of the present code may clear a suspect: if nothing is clear yet, and not too often.

        Args:
            suspect: The screening's verdict, whose launch counts.
            present: What each launch after that measured.
        """
        if suspect.baseline is None:
            return self._judge.expectations.confirm(suspect, present) is None
        most = MOST_CLEARING if self._find_history(suspect).known else MOST_CLEARING_ELSEWHERE
        found = self._compare_with_record(suspect, present)
        return len(present) < most and found.decision is Decision.OPEN and not self._clears(suspect, present)

    def clear(self, suspect: Verdict, present: Sequence[Metric]) -> Verdict | None:
        """A suspect that launches of the present code clear against the record; None if they leave it open.

        Without a record they decide either way, by what is expected of it.

        Args:
            suspect: The screening's verdict, whose launch counts.
            present: What each launch after that measured.
        """
        if suspect.baseline is None:
            return self._judge.expectations.confirm(suspect, present)
        history = self._find_history(suspect)
        if not self._clears(suspect, present):
            return None
        every = [suspect.metric, *present]
        return apply_request(self._judge.judge_passing(self._replace_metric(suspect, every, history), Reason.CLEARED))

    def commit_to_race(self, suspect: Verdict) -> str | None:
        """The commit that arm A of a race is made of: the clean one of most launches; None if there is none."""
        assert suspect.baseline is not None
        return commit_to_race(self._judge.records.list_launch_infos(suspect.baseline))

    def judge_race(self, suspect: Verdict, blocks: Blocks, *, over: bool) -> Verdict | None:
        """What a race makes of a suspect; None if it is still open.

        REGRESSED if the race accuses the present code. If it clears that, ENVIRONMENT if the record's code lost against
        its record, else SAME.

        Args:
            suspect: The screening's verdict.
            blocks: what was measured.
            over: Whether there are no more blocks: then what is open is UNDECIDED.
        """
        stored, history = suspect.baseline, self._find_history(suspect)
        assert stored is not None
        old = compute_loss_logs(blocks.old)
        present = compute_loss_logs(blocks.present)
        code = self._judge.rule.race(history, old, present, apart=APART, over=over)
        # Of code that the race has cleared, both arms are launches of equal programs.
        environment = self._judge.rule.environment(history, old + present if code.decision is Decision.CLEARED else old)
        if not over and (
            code.decision is Decision.OPEN
            or (code.decision is Decision.CLEARED and environment.decision is Decision.OPEN)
        ):
            return None
        found = replace(
            self._replace_metric(suspect, blocks.present, history),
            against=blocks.against,
            code=make_share(code, stored.better, len(blocks.present)),
            environment=make_share(environment, stored.better, len(blocks.old)),
        )
        if code.decision is Decision.ACCUSED:
            return apply_request(self._judge.excuse(replace(found, outcome=Outcome.REGRESSED, reason=None)))
        if code.decision is Decision.OPEN:
            return self._judge_left_open(found, Reason.OPEN)
        return self._judge_environment(found, environment)

    def judge_same_code(self, suspect: Verdict, launches: Sequence[Metric], commit: str) -> Verdict:
        """What launches make of a suspect whose code is that of its record: ENVIRONMENT if they lost, else SAME.

        Args:
            suspect: The screening's verdict, whose launch does not count.
            launches: What each launch after that measured.
            commit: Of the record, which the checkout holds.
        """
        stored, history = suspect.baseline, self._find_history(suspect)
        assert stored is not None
        environment = self._judge.rule.environment(history, compute_loss_logs(launches))
        found = replace(
            self._replace_metric(suspect, launches, history),
            against=commit,
            environment=make_share(environment, stored.better, len(launches)),
        )
        return self._judge_environment(found, environment)

    def _judge_environment(self, found: Verdict, environment: Sequential) -> Verdict:
        """The verdict on a metric whose code is no slower than that of its record."""
        if environment.decision is Decision.ACCUSED:
            assert found.baseline is not None
            differs = differing(
                [info.environment for info in self._judge.records.list_launch_infos(found.baseline)], self._judge.now()
            )
            reason = None if self._find_history(found).known or self._is_halved(found) else Reason.ELSEWHERE
            lost = replace(found, outcome=Outcome.ENVIRONMENT, reason=reason, differs=differs)
            return apply_request(self._judge.excuse(lost))
        return apply_request(self._judge.judge_passing(found, Reason.NOT_REPRODUCED))

    def not_raced(self, suspect: Verdict, present: Sequence[Metric], why: str, *, over: bool) -> Verdict | None:
        """What becomes of a suspect that cannot race; None if more launches of the present code may decide.

        On GPUs that the record knows, it decides alone; on others only a gross loss is decided.

        Args:
            suspect: The screening's verdict, whose launch counts.
            present: What each launch after that measured.
            why: What keeps it from racing, with the cure.
            over: Whether there are no more launches.
        """
        history = self._find_history(suspect)
        if not history.known:
            return self._judge_left_open(
                self._replace_metric(suspect, [suspect.metric, *present], history), Reason.CANNOT_RACE, why
            )
        decision = self._compare_with_record(suspect, present).decision
        if decision is Decision.OPEN and not over:
            return None
        found = replace(self._replace_metric(suspect, [suspect.metric, *present], history), detail=why)
        if decision is Decision.ACCUSED:
            return apply_request(self._judge.excuse(replace(found, outcome=Outcome.REGRESSED, reason=Reason.NOT_RACED)))
        if decision is Decision.CLEARED:
            return apply_request(self._judge.judge_passing(replace(found, detail=""), Reason.CLEARED))
        return self._judge_left_open(found, Reason.OPEN, why)

    def _find_history(self, verdict: Verdict) -> History:
        return self._judge.records.history(verdict)

    def _clears(self, suspect: Verdict, present: Sequence[Metric]) -> bool:
        return bool(present) and self._judge.rule.clears(
            self._find_history(suspect), compute_loss_logs([suspect.metric, *present])
        )

    def _compare_with_record(self, suspect: Verdict, present: Sequence[Metric]) -> Sequential:
        return self._judge.rule.compare_with_record(
            self._find_history(suspect), compute_loss_logs([suspect.metric, *present])
        )

    def _replace_metric(self, suspect: Verdict, present: Sequence[Metric], history: History) -> Verdict:
        """The suspect with the metric of several launches."""
        metric = merge_launches(present)
        loss = compute_loss_log(metric.value, metric.better) - history.center
        return replace(
            suspect, metric=metric, launches=len(present), change=convert_loss_to_change(loss, metric.better)
        )

    def _is_gross(self, verdict: Verdict) -> bool:
        """Whether a loss is beyond what machines of one kind differ by, or below the model's floor.

        The record's machines tell how far they differ. If it has only one, references do, if they know the metric.
        """
        history, stored = self._find_history(verdict), verdict.baseline
        assert stored is not None
        loss = compute_loss_log(verdict.metric.value, stored.better) - history.center
        if not history.known and self._judge.rule.is_gross(history, history.center + loss):
            return True
        said = self._judge.expectations.opinion(verdict)
        if said is None or said.saying is not Saying.BELOW:
            return False
        if said.usual is not None:
            end = said.low if stored.better == "higher" else said.high
            apart = SURELY * abs(math.log(said.usual / end)) if end else math.inf
            return not history.known and history.machines == 1 and loss > apart
        as_stored = replace(verdict, metric=replace(verdict.metric, value=stored.center))
        recorded = self._judge.expectations.opinion(as_stored)
        return recorded is not None and recorded.saying is not Saying.BELOW

    def _is_halved(self, verdict: Verdict) -> bool:
        assert verdict.baseline is not None
        loss = compute_loss_log(verdict.metric.value, verdict.baseline.better) - self._find_history(verdict).center
        return loss > HALF
