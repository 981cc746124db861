"""A search for the commit that made a test slower, in real repositories, with races that are made up."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuperf.features.racing.bisecting import bisect_lost
from pytest_gpuperf.features.racing.suspects import Held
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.arms.checkouts import commit

LOST = Verdict("test_it.py::test_a", "time", Metric(2.0, "s", "lower"), Outcome.REGRESSED, "cpu")
Decide = Callable[[Held], object]


@pytest.fixture(autouse=True)
def _every_item_is_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Held, "identity", property(lambda held: LOST.test))


def found(folder: Path, good: str, decisions: dict[str, Decide]) -> str:
    """The line that a bisection ends with; the races of a commit decide as is said of it."""

    def race(place: str, tests: Sequence[Held]) -> None:
        for test in tests:
            decisions[place](test)

    held = Held(None, [], [LOST])  # type: ignore[arg-type]
    (line,) = bisect_lost([held], folder, good, race, lambda said: None)
    return re.sub(r"[0-9a-f]{12}", "HASH", line)


def slower(test: Held) -> None:
    test.decide(replace(LOST, reason=None))


def as_fast(test: Held) -> None:
    test.decide(replace(LOST, outcome=Outcome.SAME, reason=None))


def broken(test: Held) -> None:
    test.broken = "it does not import"


def out_of_time(test: Held) -> None:
    test.decide(LOST.leave_undecided(Reason.BUDGET))


def undecided(test: Held) -> None:
    test.decide(LOST.leave_undecided(Reason.OPEN))


@pytest.mark.parametrize(
    ("second", "third", "line"),
    [
        (slower, slower, "HASH 'Second'"),
        (as_fast, slower, "HASH 'Third'"),
        (as_fast, as_fast, "HASH 'Fourth'"),
        (slower, broken, "HASH 'Second'"),
        (
            broken,
            slower,
            "one of HASH 'Second', HASH 'Third'; not decided between them: it does not import",
        ),
        (
            as_fast,
            out_of_time,
            "one of HASH 'Third', HASH 'Fourth'; not decided between them: time ran out, raise --race-budget",
        ),
        (
            undecided,
            out_of_time,
            "one of HASH 'Second', HASH 'Third', HASH 'Fourth'; not decided between them: "
            "time ran out, raise --race-budget; its races decided nothing",
        ),
    ],
)
def test_the_commit_is_found_or_those_that_are_left_with_the_reason(
    tmp_path: Path, second: Decide, third: Decide, line: str
) -> None:
    good, *places = (commit(tmp_path, {}, name) for name in ("First", "Second", "Third", "Fourth"))
    decisions = dict(zip(places, (second, third, slower), strict=True))
    assert found(tmp_path, good, decisions) == f"bisect: test_it.py::test_a is slower since {line}"
