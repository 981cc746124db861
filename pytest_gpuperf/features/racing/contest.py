"""The judge of a run that races every metric against other code, and holds none against a record."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_gpuperf.features.racing.blocks import Blocks
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.race import Decision
from pytest_gpuperf.verdicts.rule import Policy, Rule
from pytest_gpuperf.verdicts.shares import apply_request, compute_loss_logs, make_share, merge_launches
from pytest_gpuperf.verdicts.verdict import Verdict, invalidate


class Contest:
    """Judges metrics by races alone. Every metric races, so none is screened."""

    shift: float | None = None
    moved: Sequence[str] = ()
    knows: bool = False

    def __init__(self, hardware_key: str, policy: Policy, commit: str = "") -> None:
        """No metric has entered yet.

        Args:
            hardware_key: Names the machine.
            policy: What a run may get wrong, and which loss it must find.
            commit: What the present code races.
        """
        self._hardware_key = hardware_key
        self._policy = policy
        self._commit = commit
        self._entered = 0

    def conclude(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> list[Verdict]:
        """Enters the metrics of a first launch: each becomes a suspect, unless its measurement is worth nothing."""
        verdicts = []
        for name, metric in metrics.items():
            verdict = Verdict(test, name, metric, Outcome.SAME, self._hardware_key)
            invalid = invalidate(verdict)
            verdicts.append(verdict.leave_undecided(Reason.SUSPECT) if invalid is None else invalid)
            self._entered += invalid is None
        return verdicts

    def judge_race(self, suspect: Verdict, blocks: Blocks, *, over: bool) -> Verdict | None:
        """What a race makes of a metric; None if it is still open.

        Args:
            suspect: As it entered.
            blocks: what was measured.
            over: Whether there are no more blocks: then what is open is UNDECIDED.
        """
        old, present = compute_loss_logs(blocks.old), compute_loss_logs(blocks.present)
        rule = Rule.of(self._policy, (), max(1, self._entered))
        found = rule.race(None, old, present)
        gained = rule.race(None, [-log for log in old], [-log for log in present])
        if not over and found.decision is not Decision.ACCUSED and Decision.OPEN in (found.decision, gained.decision):
            return None
        better = suspect.metric.better
        verdict = replace(
            suspect,
            metric=merge_launches(blocks.present),
            launches=len(present),
            against=blocks.against,
            old=merge_launches(blocks.old).value,
            code=make_share(found, better, len(present)),
        )
        if found.decision is Decision.ACCUSED:
            return apply_request(replace(verdict, outcome=Outcome.REGRESSED, reason=None))
        if found.decision is Decision.OPEN:
            return apply_request(verdict.leave_undecided(Reason.OPEN))
        outcome = Outcome.IMPROVED if gained.decision is Decision.ACCUSED else Outcome.SAME
        return apply_request(replace(verdict, outcome=outcome, reason=None))

    def list_unchecked(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> list[str]:
        """None: nothing is asked of a baseline."""
        return []

    def second(self, test: str, metrics: Mapping[str, Metric]) -> None:
        """Nothing is held against a baseline, so nothing can have moved against one."""

    def may_clear(self, suspect: Verdict, present: Sequence[Metric]) -> bool:
        """Never: there is nothing but the race."""
        return False

    def clear(self, suspect: Verdict, present: Sequence[Metric]) -> Verdict | None:
        """None: there is nothing but the race."""
        return None

    def commit_to_race(self, suspect: Verdict) -> str | None:
        """What the user named."""
        return self._commit

    def not_raced(self, suspect: Verdict, present: Sequence[Metric], why: str, *, over: bool) -> Verdict | None:
        """Undecided, with the reason."""
        return suspect.leave_undecided(Reason.CANNOT_RACE, why)

    def name_differences(self, verdict: Verdict) -> Verdict:
        """Returns it as it is: there is no record that anything could differ from."""
        return verdict

    def judge_stopped(self, suspect: Verdict, blocks: Blocks) -> Verdict:
        """What a race makes of a metric that no time was left for: what is open is UNDECIDED, with both values.

        Args:
            suspect: As it entered.
            blocks: what was measured.
        """
        verdict = self.judge_race(suspect, blocks, over=True)
        assert verdict is not None
        return replace(verdict, reason=Reason.BUDGET) if verdict.reason is Reason.OPEN else verdict

    def out_of_time(self, suspect: Verdict, present: Sequence[Metric]) -> Verdict:
        """Undecided."""
        return suspect.leave_undecided(Reason.BUDGET)
