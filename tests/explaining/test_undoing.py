"""What explains that a figure moved: decided by launches whose figures a test makes up."""

import math
import random
from collections.abc import Sequence
from itertools import combinations

import pytest

from pytest_gpuperf.features.explaining.undoing import Undoing, count_most_trials, find_fewest
from pytest_gpuperf.verdicts.explanation import Explained
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from tests.verdicts.judged import STEADY, judge_of, verdict_of

RECORDED = 100.0


def undoing(change: float) -> Undoing:
    """The rule for a figure that moved by so much, above 0 is better."""
    verdict = verdict_of(RECORDED * (1 + change))
    found = Undoing.of(judge_of(STEADY), verdict)
    assert found is not None
    return found


def logs(*values: float) -> list[float]:
    """Throughputs as the rule sees them: larger is worse."""
    return [-math.log(value) for value in values]


def steady(value: float, launches: int = 4, seed: int = 0) -> list[float]:
    noise = random.Random(seed)
    return logs(*(value * (1 + noise.gauss(0, 0.002)) for _ in range(launches)))


@pytest.mark.parametrize(
    ("now", "undone", "found"),
    [
        (80.0, 100.0, Explained.EXPLAINED),
        (80.0, 90.0, Explained.PARTLY),
        (80.0, 80.0, Explained.NOT),
        (80.0, 60.0, Explained.NOT),  # to undo them makes it worse still
        (120.0, 100.0, Explained.EXPLAINED),
        (120.0, 110.0, Explained.PARTLY),
        (120.0, 120.0, Explained.NOT),
        (120.0, 140.0, Explained.NOT),
        (80.0, 120.0, Explained.EXPLAINED),  # the loss is gone, and more
    ],
)
def test_variables_explain_what_comes_back_without_them(now: float, undone: float, found: Explained) -> None:
    rule = undoing(now / RECORDED - 1)
    assert rule.judge_undone(steady(undone, seed=1), steady(now, seed=2), over=False) is found


def test_launches_that_differ_too_much_decide_nothing() -> None:
    rule = undoing(-0.2)
    undone, now = logs(100, 60, 100, 60), logs(80, 80, 80, 80)
    assert rule.judge_undone(undone, now, over=False) is None
    assert rule.judge_undone(undone, now, over=True) is Explained.OPEN
    assert rule.suffices(undone, now, over=False) is None
    assert rule.suffices(undone, now, over=True) is False


def test_one_odd_launch_does_not_say_whether_a_figure_is_as_recorded() -> None:
    rule = undoing(-0.2)
    assert rule.is_as_recorded(logs(100, 100, 60))
    assert not rule.is_as_recorded(logs(80, 80, 100))
    gained = undoing(0.2)
    assert gained.is_as_recorded(logs(100, 100, 140))
    assert not gained.is_as_recorded(logs(120, 120, 100))


@pytest.mark.parametrize(
    ("change", "fewer", "suffices"), [(-0.2, 100.0, True), (-0.2, 80.0, False), (0.2, 100.0, True), (0.2, 120.0, False)]
)
def test_fewer_variables_suffice_if_they_do_the_same(change: float, fewer: float, suffices: bool) -> None:
    assert undoing(change).suffices(steady(100.0, seed=1), steady(fewer, seed=2), over=False) is suffices


def test_only_figures_that_moved_from_a_record_are_explained() -> None:
    judge = judge_of(STEADY)
    assert Undoing.of(judge, verdict_of(100.0)) is None
    assert Undoing.of(judge, verdict_of(100.0, None)) is None
    assert verdict_of(110.0).outcome is Outcome.IMPROVED
    found = Undoing.of(judge, verdict_of(110.0))
    assert found is not None
    assert found.gained
    asked = verdict_of(90.0).leave_undecided(Reason.ASKED)
    assert Undoing.of(judge, asked) is None


def answer(names: Sequence[str], needed: set[str]) -> tuple[tuple[str, ...], int]:
    """What the search finds if just these names together suffice, and how many parts it tried."""
    search, trials = find_fewest(names), 0
    try:
        part = next(search)
        while True:
            trials += 1
            part = search.send(needed <= set(part))
    except StopIteration as end:
        return end.value, trials


@pytest.mark.parametrize("count", range(1, 8))
def test_the_search_finds_every_set_of_names_that_matter(count: int) -> None:
    names = [f"V{number}" for number in range(count)]
    for size in range(1, count + 1):
        for needed in combinations(names, size):
            found, trials = answer(names, set(needed))
            assert found == needed
            assert trials <= count_most_trials(count)


def test_one_name_among_many_takes_few_trials() -> None:
    names = [f"V{number}" for number in range(32)]
    assert max(answer(names, {name})[1] for name in names) <= 11


def test_of_two_names_that_each_suffice_the_likelier_is_the_answer() -> None:
    search = find_fewest(["A", "B"])
    assert next(search) == ("A",)
    with pytest.raises(StopIteration) as end:
        search.send(True)
    assert end.value.value == ("A",)
