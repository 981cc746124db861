"""What ``--explain`` launches, for whom, and what it makes of it: arms, budget and decisions are made up."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_gpuperf.features.explaining.search import Explaining
from pytest_gpuperf.features.explaining.undoing import Undoing
from pytest_gpuperf.features.racing.arms.arm import Arm, Measured
from pytest_gpuperf.features.racing.suspects import Held
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.repository import CannotRace
from pytest_gpuperf.verdicts.explanation import Explained, Explanation
from pytest_gpuperf.verdicts.race import MOST_BLOCKS
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.verdicts.judged import STEADY, judge_of, verdict_of

ALGO, PROTO, NVLS = {"NCCL_ALGO": ("", "Tree")}, {"NCCL_PROTO": ("", "LL")}, {"NCCL_NVLS_ENABLE": ("", "1")}
Differs = Mapping[str, tuple[str, str]]
Figures = Mapping[str, Sequence[float | Exception]]
"""What tests come to in an arm, launch after launch, the last one for ever."""


class Moved(Held):
    """A test that measured 80 where its record has 100."""

    @property
    def identity(self) -> str:
        return str(cast(Any, self.item).nodeid)


def moved(name: str, differs: Differs, *metrics: str, **more: Any) -> Moved:
    item, phases = SimpleNamespace(nodeid=name), [SimpleNamespace(duration=10.0)]
    verdict = verdict_of(80.0)
    verdicts = [replace(verdict, test=name, metric_name=metric, differs=differs) for metric in metrics or ("busbw",)]
    return Moved(cast(Any, item), cast(Any, phases), verdicts, **more)


@dataclass
class FakeArm:
    """An arm whose figures are made up."""

    name: str
    figures: Figures
    software: Mapping[str, str]
    log: list[str]
    seconds: float = 0.0
    launches: dict[str, int] = field(default_factory=dict)

    def start(self) -> None:
        self.log.append(f"start {self.name}")

    def close(self) -> None:
        self.log.append(f"close {self.name}")

    def launch(self, tests: Sequence[str], limit: float) -> Mapping[str, Measured]:
        self.log.append(f"{self.name}: {' '.join(tests)}")
        return {test: self._measured(test) for test in tests}

    def _measured(self, test: str) -> Measured:
        number = self.launches[test] = self.launches.get(test, 0) + 1
        values = self.figures.get(test, [80.0])
        value = values[min(number, len(values)) - 1]
        if isinstance(value, Exception):
            raise value
        figures = {name: Metric(value, "B/s", "higher") for name in ("busbw", "algbw")}
        return Measured(figures, "body", self.software)


@dataclass
class World:
    """All that the search has around it: what it does, and what it is told."""

    arms: Mapping[str, Figures]
    """By the variables that are put back, joined by ``+``; empty for the run as it is."""
    affordable: int = 1000
    """Launches."""
    undoing_of: Mapping[str, Undoing] = field(default_factory=dict)
    """The made-up decisions, by test."""
    log: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def undoing(self, verdict: Verdict) -> Undoing | None:
        return self.undoing_of.get(verdict.test, rule())

    def choosing(self, verdict: Verdict, now: Mapping[str, str]) -> Verdict:
        return replace(verdict, chosen={name: ("", value) for name, value in now.items()})

    def present(self, python: str | None = None, variables: Mapping[str, str] | None = None) -> Arm:
        names = "+".join(variables or {})
        return FakeArm(names or "as it is", self.arms.get(names, {}), {**(variables or {})}, self.log)

    def close(self) -> None:
        self.log.append("closed")

    def affords(self, tests: Sequence[Held], launches: int) -> bool:
        return launches <= self.affordable

    def predict(self, tests: Sequence[Held]) -> float:
        return 10.0 * len(tests)

    def launch(self, arm: Arm, tests: Sequence[str], limit: float) -> Mapping[str, Measured]:
        self.affordable -= 1
        return arm.launch(tests, limit)

    def open(self, tests: Sequence[str]) -> "World":
        self.log.append(f"open for {' '.join(tests)}")
        return self

    def explain(self, *tests: Moved) -> list[Explanation | None]:
        """Searches, and returns what the verdicts carry."""
        self.explaining().explain(tests)
        return [verdict.explanation for test in tests for verdict in test.verdicts]

    def explaining(self) -> Explaining:
        return Explaining(
            self.undoing,
            self.choosing,
            cast(Any, self),
            cast(Any, self.open),
            lambda: self.log.append("vacated"),
            lambda item: {"transport": "P2P"},
            self.said.append,
        )


def rule() -> Undoing:
    """The real one, for a figure of 80 whose record has 100."""
    found = Undoing.of(judge_of(STEADY), verdict_of(80.0))
    assert found is not None
    return found


@dataclass(frozen=True)
class MadeUp(Undoing):
    """Decides by how many launches there are, and is open in all other cases."""

    found_after: Mapping[int, Explained] = field(default_factory=dict)
    suffices_after: Mapping[int, bool] = field(default_factory=dict)

    def judge_undone(self, undone: Sequence[float], as_it_is: Sequence[float], *, over: bool) -> Explained | None:
        return self.found_after.get(len(undone), Explained.OPEN if over else None)

    def suffices(self, undone: Sequence[float], fewer: Sequence[float], *, over: bool) -> bool | None:
        return self.suffices_after.get(len(fewer), False if over else None)


def made_up(found: Mapping[int, Explained], suffices: Mapping[int, bool]) -> MadeUp:
    """By numbers of launches."""
    real = rule()
    return MadeUp(real.rule, real.history, real.gained, found, suffices)


def only(explanation: Explanation | None) -> Explanation:
    assert explanation is not None
    return explanation


def test_a_race_lets_go_of_the_gpus_starts_both_arms_and_is_closed() -> None:
    world = World({"NCCL_ALGO": {"a": [100.0]}})
    (found,) = world.explain(moved("a", ALGO))
    assert world.log == [
        "vacated",
        "open for a",
        "start NCCL_ALGO",
        "start as it is",
        *["NCCL_ALGO: a", "as it is: a", "as it is: a", "NCCL_ALGO: a"] * 2,
        "closed",
    ]
    assert only(found).found is Explained.EXPLAINED


def test_what_launches_told_is_kept_with_its_size_and_what_was_not_tried() -> None:
    test = moved("a", {**ALGO, **NVLS})
    (found,) = World({"NCCL_ALGO": {"a": [100.0]}}).explain(test)
    found = only(found)
    assert (found.found, found.value, dict(found.undone)) == (Explained.EXPLAINED, 100.0, ALGO)
    assert list(found.untried) == ["NCCL_NVLS_ENABLE"]
    assert found.share is not None
    assert found.share.change == pytest.approx(-0.2, abs=0.01)  # the run as it is, against those launches
    assert found.share.launches == 4
    assert test.verdicts[0].chosen == {"transport": ("", "P2P")}


def test_a_broken_test_races_nothing() -> None:
    world = World({"NCCL_ALGO": {"a": [100.0]}})
    assert world.explain(moved("a", ALGO, broken="it failed")) == [None]
    assert world.log == []


def test_figures_that_differ_in_the_same_variables_share_a_race_and_no_others() -> None:
    world = World({"NCCL_ALGO": {"a": [100.0], "c": [100.0]}, "NCCL_PROTO": {"b": [100.0]}})
    found = world.explain(moved("a", ALGO), moved("b", PROTO), moved("c", ALGO))
    assert [only(one).found for one in found] == [Explained.EXPLAINED] * 3
    assert [dict(only(one).undone) for one in found] == [ALGO, PROTO, ALGO]
    assert [line for line in world.log if line.startswith("open")] == ["open for a c", "open for b"]
    assert world.log.count("NCCL_ALGO: a c") == world.log.count("NCCL_PROTO: b") == 4


def test_a_test_of_two_figures_runs_once_in_a_launch() -> None:
    world = World({"NCCL_ALGO": {"a": [100.0]}})
    found = world.explain(moved("a", ALGO, "busbw", "algbw"))
    assert [only(one).found for one in found] == [Explained.EXPLAINED] * 2
    assert "open for a" in world.log
    assert world.log.count("NCCL_ALGO: a") == 4


def test_a_figure_that_comes_back_in_part_is_searched_too() -> None:
    world = World({"NCCL_ALGO+NCCL_PROTO": {"a": [90.0]}, "NCCL_ALGO": {"a": [80.0]}, "NCCL_PROTO": {"a": [90.5]}})
    (found,) = world.explain(moved("a", {**ALGO, **PROTO}))
    assert (only(found).found, dict(only(found).undone), only(found).value) == (Explained.PARTLY, PROTO, 90.5)
    assert world.log.count("close NCCL_ALGO") == world.log.count("close NCCL_PROTO") == 1


def test_an_arm_that_ends_leaves_what_was_found_before() -> None:
    world = World(
        {"NCCL_ALGO": {"a": [100.0], "b": [*[100.0] * 4, CannotRace("the arm was killed")]}},
        undoing_of={"b": made_up({}, {})},
    )
    first, second = map(only, world.explain(moved("a", ALGO), moved("b", ALGO)))
    assert (first.found, first.problem) == (Explained.EXPLAINED, "")
    assert (second.found, second.problem) == (Explained.UNTRIED, "the arm was killed")


def test_equal_questions_share_a_race_and_unequal_ones_do_not() -> None:
    names = [f"NCCL_V{number}" for number in range(1, 5)]
    differs = dict.fromkeys(names, ("", "1"))
    needs = {"a": "NCCL_V1", "b": "NCCL_V3"}
    parts = ["NCCL_V1+NCCL_V2", "NCCL_V1", "NCCL_V3", "NCCL_V1+NCCL_V2+NCCL_V3", "+".join(names)]
    arms = {
        part: {test: [100.0 if needed in part.split("+") else 80.0] for test, needed in needs.items()} for part in parts
    }
    world = World(arms)
    found = world.explain(moved("a", differs), moved("b", differs))
    assert [list(only(one).undone) for one in found] == [["NCCL_V1"], ["NCCL_V3"]]
    asked = [line for line in dict.fromkeys(world.log) if ": " in line]
    assert asked[:3] == [f"{'+'.join(names)}: a b", "as it is: a b", "NCCL_V1+NCCL_V2: a b"]
    assert f"{'+'.join(names)}: a" in asked
    assert "NCCL_V1: a" in asked
    assert "NCCL_V1+NCCL_V2+NCCL_V3: b" in asked


def test_a_race_that_stays_open_ends_after_all_its_blocks() -> None:
    world = World({}, undoing_of={"a": made_up({}, {})})
    (found,) = world.explain(moved("a", ALGO))
    assert only(found).found is Explained.OPEN
    assert world.log.count("NCCL_ALGO: a") == world.log.count("as it is: a") == 2 * MOST_BLOCKS


def test_a_question_that_is_open_takes_another_block() -> None:
    decided = made_up({2: Explained.EXPLAINED}, {4: True})
    world = World({}, undoing_of={"a": decided})
    (found,) = world.explain(moved("a", {**ALGO, **PROTO}))
    assert dict(only(found).undone) == ALGO
    assert world.log.count("NCCL_ALGO: a") == 4
    assert world.log.count("NCCL_ALGO+NCCL_PROTO: a") == 2 + 4


def test_a_block_is_begun_only_if_all_of_it_is_affordable() -> None:
    world = World({}, affordable=6, undoing_of={"a": made_up({}, {})})
    (found,) = world.explain(moved("a", ALGO))
    assert (only(found).found, only(found).problem) == (Explained.UNTRIED, "time ran out: raise --race-budget")
    assert world.affordable == 2


def test_it_says_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 107.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    world = World({"NCCL_ALGO": {"a": [100.0]}})
    explaining = world.explaining()
    explaining.note_collected()
    explaining.explain([moved("a", ALGO)])
    # Four launches of 10 s are a block: two blocks if launches are steady, seven at most, and 7 s to collect the tests.
    assert "takes about 87 s if launches are steady, at most about 287 s" in world.said[0]
    assert "(4 launches, about 40 s)" in world.said[1]


@pytest.mark.parametrize(
    ("then", "now", "why"),
    [
        ("Ring", "Tree", "had NCCL_ALGO=Tree, expected NCCL_ALGO=Ring"),
        ("Ring", "", "had no NCCL_ALGO, expected NCCL_ALGO=Ring"),
        ("", "Tree", "had NCCL_ALGO=Tree, expected no NCCL_ALGO"),
    ],
)
def test_a_launch_that_has_another_value_than_the_record_tells_nothing(
    monkeypatch: pytest.MonkeyPatch, then: str, now: str, why: str
) -> None:
    world = World({})
    software = {"NCCL_ALGO": now} if now else {}
    arm = FakeArm("undo", {"a": [100.0]}, software, world.log)
    monkeypatch.setattr(world, "present", lambda **kwargs: arm)
    (found,) = world.explain(moved("a", {"NCCL_ALGO": (then, now)}))
    assert only(found).found is Explained.UNTRIED
    assert why in only(found).problem
