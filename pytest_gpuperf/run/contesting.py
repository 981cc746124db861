"""The judging half of a run with ``--against``: all figures race, and none is held against a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.contest import Contest
from pytest_gpuperf.verdicts.judge import Arms
from pytest_gpuperf.verdicts.outcome import Reason
from pytest_gpuperf.verdicts.rule import Policy
from pytest_gpuperf.verdicts.verdict import Verdict


class Contesting:
    """Enters each figure when its test's body has ended, and judges it by its race."""

    shift: float | None = None
    moved: Sequence[str] = ()
    knows: bool = False

    def __init__(self, hardware_key: str, policy: Policy, commit: str) -> None:
        """No figure has entered yet.

        Args:
            hardware_key: Names the machine.
            policy: What a verdict may get wrong, and which loss it must find.
            commit: What the present code races.
        """
        self._contest = Contest(hardware_key, policy)
        self._commit = commit

    def conclude(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> list[Verdict]:
        """The figures of one test's first launch, as they enter the race."""
        return self._contest.enter(test, metrics)

    def unchecked(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> list[str]:
        """None: nothing is asked of a baseline."""
        return []

    def second(self, test: str, metrics: Mapping[str, Metric]) -> None:
        """Nothing is held against a baseline, so nothing can have moved against one."""

    def may_clear(self, suspect: Verdict, present: Sequence[Metric]) -> bool:
        """Never: there is nothing but the race."""
        return False

    def cleared(self, suspect: Verdict, present: Sequence[Metric]) -> Verdict | None:
        """None: there is nothing but the race."""
        return None

    def commit_to_race(self, suspect: Verdict) -> str | None:
        """What the user named."""
        return self._commit

    def raced(self, suspect: Verdict, arms: Arms, *, over: bool) -> Verdict | None:
        """What a race makes of a figure; None if it is still open."""
        return self._contest.raced(suspect, arms, over=over)

    def not_raced(self, suspect: Verdict, present: Sequence[Metric], why: str, *, over: bool) -> Verdict | None:
        """Undecided, with the reason."""
        return suspect.undecided(Reason.CANNOT_RACE, why)

    def out_of_time(self, suspect: Verdict, present: Sequence[Metric]) -> Verdict:
        """Undecided."""
        return suspect.undecided(Reason.BUDGET)
