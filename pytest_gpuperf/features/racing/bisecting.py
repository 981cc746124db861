"""The commit that made a test slower: races of commits after a good one against it, each halving what is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_gpuperf.features.racing.lines import describe_bisect_step, describe_bisection
from pytest_gpuperf.features.racing.suspects import Held
from pytest_gpuperf.repository import CannotRace, Repository
from pytest_gpuperf.verdicts.outcome import Outcome, Reason

CHANGES = ""
"""What stands for the changes that are not committed, behind all commits."""


@dataclass(slots=True)
class _Search:
    """What is known of one test: it is as fast as the good commit at ``lo``, and slower at ``hi``."""

    test: Held
    lo: int
    hi: int
    skipped: dict[int, str] = field(default_factory=dict)
    """Places at which a race decided nothing, and why."""

    @property
    def left(self) -> list[int]:
        """Places at which a race would tell more."""
        return [place for place in range(self.lo + 1, self.hi) if place not in self.skipped]


def list_regressed(tests: Sequence[Held]) -> list[Held]:
    """The tests that lost a race."""
    return [test for test in tests if any(verdict.outcome is Outcome.REGRESSED for verdict in test.verdicts)]


def bisect_lost(
    tests: Sequence[Held],
    folder: Path,
    good: str,
    race: Callable[[str, Sequence[Held]], None],
    say: Callable[[str], None],
) -> list[str]:
    """A line for each test that is slower than at the good commit: since which commit.

    Args:
        tests: that lost a race against the good commit.
        folder: in the repository.
        good: the good commit.
        race: races a commit against the good one, and decides about the tests that it is given.
        say: prints a line while the run goes on.
    """
    try:
        repository = Repository.of(folder)
        commits = _list_commits(repository, good)
    except CannotRace as error:
        return [f"bisect: {error}"]
    searches = [_Search(test, -1, len(commits) - 1) for test in tests]
    while open_ := [search for search in searches if search.left]:
        widest = max(open_, key=lambda search: len(search.left))
        place = widest.left[len(widest.left) // 2]
        _step(repository, commits[place], place, [search for search in open_ if place in search.left], race, say)
    return [_tell(repository, commits, search) for search in searches]


def _list_commits(repository: Repository, good: str) -> list[str]:
    """The commits after the good one, the oldest first, and what is not committed."""
    changes = [CHANGES] if repository.is_dirty() else []
    if changes and repository.resolve(good) == repository.resolve("HEAD"):
        return changes
    return [*repository.list_commits(good, "HEAD"), *changes]


def _step(
    repository: Repository,
    commit: str,
    place: int,
    searches: Sequence[_Search],
    race: Callable[[str, Sequence[Held]], None],
    say: Callable[[str], None],
) -> None:
    say(describe_bisect_step(commit, repository.subject(commit), len(searches), max(len(one.left) for one in searches)))
    again = [_reopen_test(search.test) for search in searches]
    race(commit, again)
    for search, test in zip(searches, again, strict=True):
        outcomes = {verdict.outcome for verdict in test.verdicts}
        if why := _say_undecided(test):
            search.skipped[place] = why
        elif Outcome.REGRESSED in outcomes:
            search.hi = place
        else:
            search.lo = place


def _say_undecided(test: Held) -> str:
    """Return why a race has not decided about a test; empty if it has."""
    if broken := test.broken or test.no_race:
        return broken
    reasons = [verdict.reason for verdict in test.verdicts if verdict.outcome is Outcome.UNDECIDED]
    if Reason.BUDGET in reasons:
        return "time ran out, raise --race-budget"
    return "its races decided nothing" if reasons else ""


def _reopen_test(test: Held) -> Held:
    """Returns the test with its regressed metrics as suspects again."""
    lost = [verdict for verdict in test.verdicts if verdict.outcome is Outcome.REGRESSED]
    return Held(test.item, test.reports, [replace(one.leave_undecided(Reason.SUSPECT), code=None) for one in lost])


def _tell(repository: Repository, commits: Sequence[str], search: _Search) -> str:
    left = [
        "the changes that are not committed" if commit == CHANGES else f"{commit[:12]} {repository.subject(commit)!r}"
        for commit in commits[search.lo + 1 : search.hi + 1]
    ]
    return describe_bisection(search.test.identity, left, list(dict.fromkeys(search.skipped.values())))
