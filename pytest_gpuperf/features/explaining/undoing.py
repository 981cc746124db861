"""Decides what explains that a metric moved, from launches that have some of the record's variables.

Metrics are natural logarithms, oriented so that larger is worse.
"""

import statistics
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Self

from pytest_gpuperf.verdicts.explanation import Explained
from pytest_gpuperf.verdicts.history import History
from pytest_gpuperf.verdicts.judge import Judge
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.race import Decision, Sequential
from pytest_gpuperf.verdicts.rule import Rule
from pytest_gpuperf.verdicts.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Undoing:
    """The rule for one metric that moved; the record's variables must make one that gained worse."""

    rule: Rule
    """Judged it."""
    history: History
    """The metric's record."""
    gained: bool
    """Whether the metric is better than its record."""

    @classmethod
    def of(cls, judge: Judge, verdict: Verdict) -> Self | None:
        """Returns the rule for a metric; None if it did not move, or has no record.

        Args:
            judge: of the run.
            verdict: on the metric, after all races.
        """
        moved = verdict.outcome in (Outcome.REGRESSED, Outcome.ENVIRONMENT, Outcome.IMPROVED, Outcome.UNDECIDED)
        if not moved or verdict.baseline is None or not verdict.change or verdict.reason is Reason.ASKED:
            return None
        return cls(judge.rule, judge.records.history(verdict), gained=verdict.change > 0)

    def race(self, undone: Sequence[float], as_it_is: Sequence[float]) -> Sequential:
        """Return what a race shows; the loss is that of the run as it is against the run with variables undone.

        Args:
            undone: Logarithms of the launches with the record's variables, whole ABBA blocks.
            as_it_is: Logarithms of the launches as they are, likewise.
        """
        return self.rule.race(self.history, undone, as_it_is)

    def judge_undone(self, undone: Sequence[float], as_it_is: Sequence[float], *, over: bool) -> Explained | None:
        """Return what a race shows about the variables that were undone; None if it is still open.

        EXPLAINED if the run as it is differs from the run with the record's variables in the direction in which the
        metric moved, by the minimum slowdown with the certainty of an accusation, and the latter did not move that way
        against the record. PARTLY if it did. NOT if both are the same.

        Args:
            undone: Logarithms of the launches with the record's variables, whole ABBA blocks.
            as_it_is: Logarithms of the launches as they are, likewise.
            over: Whether there are no more blocks.
        """
        decision = self._judge_move(undone, as_it_is)
        if decision is Decision.OPEN:
            return Explained.OPEN if over else None
        if decision is Decision.CLEARED:
            return Explained.NOT
        return Explained.EXPLAINED if self.is_as_recorded(undone) else Explained.PARTLY

    def suffices(self, undone: Sequence[float], fewer: Sequence[float], *, over: bool) -> bool | None:
        """Return whether to undo fewer variables does what to undo all of them does; None if that is still open.

        Args:
            undone: Logarithms of the launches with all of the variables undone, whole ABBA blocks.
            fewer: Logarithms of the launches with fewer of them undone, likewise.
            over: Whether there are no more blocks: then what is open does not suffice.
        """
        decision = self._judge_move(undone, fewer)
        if decision is Decision.OPEN:
            return False if over else None
        return decision is Decision.CLEARED

    def is_as_recorded(self, undone: Sequence[float]) -> bool:
        """Return whether the median of these launches would pass the screen; of a metric that gained, as no gain."""
        middle = statistics.median(undone)
        if self.gained:
            return not self.rule.is_improved(self.history, middle)
        return not self.rule.suspects(self.history, middle)

    def _judge_move(self, undone: Sequence[float], other: Sequence[float]) -> Decision:
        sign = -1.0 if self.gained else 1.0
        return self.race([sign * log for log in undone], [sign * log for log in other]).decision


def find_fewest(names: Sequence[str]) -> Generator[tuple[str, ...], bool, tuple[str, ...]]:
    """Search for a smallest part of the names that does what all of them do.

    The generator yields parts that are to be tried, expects whether each of them suffices, and returns the answer. No
    name of the answer can be left out. Of two answers that both suffice it prefers the one with earlier names. One
    name among n takes about log2 n trials. Source: Junker, QuickXplain, Proceedings of AAAI 2004, pages 167-172.

    Args:
        names: The likeliest first; all of them together suffice.
    """
    return (yield from _find_fewest((), (), tuple(names)))


def count_most_trials(names: int) -> int:
    """Return how many parts ``find_fewest`` tries at most."""
    return 2 * (names - 1)


def _find_fewest(
    kept: tuple[str, ...], added: tuple[str, ...], names: tuple[str, ...]
) -> Generator[tuple[str, ...], bool, tuple[str, ...]]:
    """Return what of the names has to be added to those that are kept; ``added`` are those of them that are new."""
    if added and (yield kept):
        return ()
    if len(names) == 1:
        return names
    half = len(names) // 2
    early, late = names[:half], names[half:]
    of_late = yield from _find_fewest((*kept, *early), early, late)
    of_early = yield from _find_fewest((*kept, *of_late), of_late, early)
    return (*of_early, *of_late)
