"""A figure's way through the rule, as a run takes it: screen, clear, race, environment."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_gpuperf.verdicts.history import History
from pytest_gpuperf.verdicts.race import MOST_BLOCKS, Decision
from pytest_gpuperf.verdicts.rule import APART, HALF, MOST_CLEARING, MOST_CLEARING_ELSEWHERE, MOST_LAUNCHES, Rule

BLOCK = 4  # launches of an ABBA block


@dataclass(frozen=True, slots=True)
class Course:
    """What became of one figure."""

    suspect: bool = False
    regressed: bool = False
    environment: bool = False
    gross: bool = False
    """Whether the figure is at less than half its speed."""
    undecided: bool = False
    clearing: int = 0
    """Launches beyond the screen that were to clear it."""
    blocks: int = 0
    """The blocks of its race."""


def taken(
    rule: Rule,
    history: History,
    today: Sequence[float],
    code: float = 0.0,
    environment: float = 0.0,
    *,
    host: bool = False,
) -> Course:
    """Judge one figure.

    Args:
        rule: The suite's.
        history: The record.
        today: The logarithms of today's launches, in order, as the record's commit makes them on an unchanged machine.
        code: By how much the present code is slower, in logarithms.
        environment: By how much the machine is slower.
        host: Whether the figure depends on the host.
    """
    launches = iter([y + environment for y in today])
    screen = next(launches) + code
    if not rule.suspects(history, screen, shown=rule.is_noisy(history) or (host and not history.known)):
        return Course()
    clearing, ys = 0, [screen]
    while clearing < (MOST_CLEARING if history.known else MOST_CLEARING_ELSEWHERE):
        clearing += 1
        ys.append(next(launches) + code)
        if rule.clears(history, ys):
            return Course(suspect=True, clearing=clearing)
    a, b, decision = _raced(rule, history, lambda: next(launches), code)
    same = a + b if decision is Decision.CLEARED else a  # then both arms are launches of the record's commit
    found = rule.environment(history, same).decision is Decision.ACCUSED
    gross = not history.known and rule.is_gross(history, statistics.median(b))
    return Course(
        True,
        decision is Decision.ACCUSED or (decision is Decision.OPEN and gross),
        found,
        statistics.median(b) - history.center > HALF,
        decision is Decision.OPEN and not gross,
        clearing=clearing,
        blocks=len(a) // 2,
    )


def raced_without_record(rule: Rule, today: Sequence[float], code: float = 0.0) -> Course:
    """Race one figure without a record.

    Args:
        rule: The suite's.
        today: The logarithms of today's launches, in order.
        code: By how much the present code is slower, in logarithms.
    """
    launches = iter(today)
    a, _, decision = _raced(rule, None, lambda: next(launches), code)
    return Course(True, decision is Decision.ACCUSED, undecided=decision is Decision.OPEN, blocks=len(a) // 2)


def against_record(rule: Rule, history: History, today: Sequence[float], code: float = 0.0) -> Course:
    """Judge one figure where nothing can race.

    Args:
        rule: The suite's.
        history: The record.
        today: The logarithms of today's launches, in order.
        code: By how much the present code is slower, in logarithms.
    """
    ys = [y + code for y in today[:MOST_LAUNCHES]]
    if not rule.suspects(history, ys[0], shown=rule.is_noisy(history)):
        return Course()
    for count in range(2, len(ys) + 1):
        decision = rule.compare_with_record(history, ys[:count]).decision
        if decision is not Decision.OPEN:
            return Course(True, decision is Decision.ACCUSED, clearing=count - 1)
    return Course(True, undecided=True, clearing=len(ys) - 1)


def launches_of(courses: Sequence[Course]) -> int:
    """Return the launches of a run beyond the screen: all suspects share them."""
    clearing = max((course.clearing for course in courses), default=0)
    return clearing + BLOCK * max((course.blocks for course in courses), default=0)


def _raced(
    rule: Rule, history: History | None, launch: Callable[[], float], code: float
) -> tuple[list[float], list[float], Decision]:
    """Race; return both arms' launches and the decision."""
    a: list[float] = []
    b: list[float] = []
    decision = Decision.OPEN
    while decision is Decision.OPEN and len(a) < 2 * MOST_BLOCKS:
        a.append(launch())
        b += [launch() + code, launch() + code]
        a.append(launch())
        over = len(a) == 2 * MOST_BLOCKS
        decision = rule.race(history, a, b, apart=0.0 if history is None else APART, over=over).decision
    return a, b, decision
