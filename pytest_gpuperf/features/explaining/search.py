"""``--explain``: the variables that differ from a record are put back, and the run with them races the run as it is.

Both arms are processes of the present code, so a variable is undone from the first import on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby

import pytest

from pytest_gpuperf.baselines.differences import differing
from pytest_gpuperf.features.explaining.lines import describe_block, describe_start
from pytest_gpuperf.features.explaining.undoing import Undoing, count_most_trials, find_fewest
from pytest_gpuperf.features.explaining.variables import split_undoable
from pytest_gpuperf.features.racing.arms.arm import Arm, Measured
from pytest_gpuperf.features.racing.arms.arms import Arms
from pytest_gpuperf.features.racing.spending import Spending, compute_limit, list_ids
from pytest_gpuperf.features.racing.suspects import Held
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.repository import CannotRace
from pytest_gpuperf.verdicts.explanation import Explained, Explanation
from pytest_gpuperf.verdicts.judge import Judge
from pytest_gpuperf.verdicts.race import MOST_BLOCKS
from pytest_gpuperf.verdicts.shares import compute_loss_logs, make_share, merge_launches
from pytest_gpuperf.verdicts.verdict import Verdict

_NO_TIME = "time ran out: raise --race-budget"


@dataclass(slots=True, eq=False)
class _Figure:
    """A metric that moved, and what is known about why."""

    test: Held
    verdict: Verdict
    undoing: Undoing
    changes: dict[str, tuple[str, str]]
    """Variables that can be put back, the likeliest first: as recorded, now."""
    untried: dict[str, str]
    found: Explained | None = None
    undone: list[Metric] = field(default_factory=list)
    """The metric of the launches with all of the record's variables."""
    as_it_is: list[Metric] = field(default_factory=list)
    by_part: dict[frozenset[str], list[Metric]] = field(default_factory=dict)
    """The metric of the launches with some of these variables."""
    search: Generator[tuple[str, ...], bool, tuple[str, ...]] | None = None
    asked: frozenset[str] = frozenset()
    """The part of the variables that the search wants to know about."""
    answer: frozenset[str] | None = None
    problem: str = ""

    def list_measured(self, part: frozenset[str]) -> list[Metric]:
        """The launches with this part of the variables put back; all of them if none had just these."""
        return self.by_part.get(part) or self.undone

    @property
    def explanation(self) -> Explanation:
        """What the verdict carries."""
        if self.found is None:
            return Explanation(Explained.UNTRIED, untried=self.untried, problem=self.problem)
        better, whole = self.verdict.metric.better, frozenset(self.changes)
        part = whole if self.answer is None else self.answer
        race = self.undoing.race(compute_loss_logs(self.undone), compute_loss_logs(self.as_it_is))
        return Explanation(
            self.found,
            undone={name: change for name, change in self.changes.items() if name in part},
            value=merge_launches(self.list_measured(part)).value,
            share=make_share(race, better, len(self.as_it_is)),
            untried=self.untried,
            problem=self.problem,
        )


class Explaining:
    """Looks for what moved the metrics of a run, once all of them are decided."""

    def __init__(
        self,
        undoing: Callable[[Verdict], Undoing | None],
        chosen: Callable[[Verdict, Mapping[str, str]], Verdict],
        spending: Spending,
        open_arms: Callable[[Sequence[str]], Arms],
        vacate: Callable[[], None],
        choices: Callable[[pytest.Item], Mapping[str, str]],
        say: Callable[[str], None],
    ) -> None:
        """Nothing is launched yet.

        Args:
            undoing: Returns the rule for a metric that moved; None if it did not move, or has no record.
            chosen: Adds to a verdict what NCCL chooses otherwise than in its record.
            spending: makes the launches.
            open_arms: makes what opens the arms for tests of these node ids.
            vacate: lets go of the GPUs, which the arms lease for themselves.
            choices: what NCCL chooses in this run, as a launch that is not timed finds it; for this test's GPUs.
            say: prints a line while the run goes on.
        """
        self._undoing = undoing
        self._chosen = chosen
        self._spending = spending
        self._open_arms = open_arms
        self._vacate = vacate
        self._choices = choices
        self._say = say
        self._began = time.monotonic()
        self._start = 0.0
        """Seconds from here to the end of the collection, as the processes of a race need them too."""

    def note_collected(self) -> None:
        """The run has collected its tests."""
        self._start = time.monotonic() - self._began

    def explain(self, tests: Sequence[Held]) -> None:
        """Adds to each verdict on a metric that moved what explains it.

        Args:
            tests: whose reports are still held back.
        """
        figures = [figure for test in tests if not test.broken for figure in self._list_moved(test)]
        if not figures:
            return
        self._vacate()
        now = self._choices(figures[0].test.item)
        for _, alike in groupby(sorted(figures, key=_list_changes), _list_changes):
            self._try(list(alike))
        for figure in figures:
            chosen = self._chosen(figure.verdict, now)
            figure.test.decide(replace(chosen, explanation=figure.explanation))

    def _list_moved(self, test: Held) -> list[_Figure]:
        found = []
        for verdict in test.verdicts:
            if (undoing := self._undoing(verdict)) is not None:
                found.append(_Figure(test, verdict, undoing, *split_undoable(verdict.differs)))
        return found

    def _try(self, figures: Sequence[_Figure]) -> None:
        """Tries the variables of metrics that all differ from their records in the same ones."""
        changes = figures[0].changes
        if not changes:
            return
        tests = _list_tests(figures)
        more, block = count_most_trials(len(changes)), 4 * self._spending.predict(tests)
        self._say(describe_start(list(changes), len(figures), self._start, block, MOST_BLOCKS, more))
        with closing(self._open_arms(list_ids(tests))) as arms:
            try:
                undone, as_it_is = arms.present(variables=_list_recorded(changes)), arms.present()
                self._race(undone, as_it_is, figures, list(changes), self._is_explained)
                if len(changes) > 1:
                    self._search(arms, undone, [one for one in figures if one.found in _MOVING])
            except CannotRace as error:
                for figure in figures:
                    if figure.found is None:
                        figure.problem = figure.problem or str(error)

    def _search(self, arms: Arms, undone: Arm, figures: Sequence[_Figure]) -> None:
        """Finds the variables that matter: each search asks about a part of them, and equal questions share a race."""
        for figure in figures:
            figure.search = find_fewest(list(figure.changes))
            figure.asked = frozenset(next(figure.search))
        while asking := [figure for figure in figures if figure.search is not None and not figure.problem]:
            part = asking[0].asked
            sharing = [figure for figure in asking if figure.asked == part]
            variables = _list_recorded({name: both for name, both in sharing[0].changes.items() if name in part})
            try:
                with closing(arms.present(variables=variables)) as fewer:
                    self._race(undone, fewer, sharing, list(variables), self._is_answered)
            except CannotRace as error:
                for figure in sharing:
                    figure.problem = figure.problem or str(error)

    def _race(
        self,
        undone: Arm,
        other: Arm,
        figures: Sequence[_Figure],
        names: Sequence[str],
        decide: Callable[[_Figure, list[Metric], list[Metric], bool], bool],
    ) -> None:
        """Races two arms in blocks until each metric is decided or has a problem.

        Args:
            undone: the arm with all of the record's variables.
            other: the run as it is, or an arm with fewer of them.
            figures: those that race.
            names: the variables that the race is about.
            decide: decides about a metric by the launches of both arms; whether it could.
        """
        undone.start()  # both collect their tests side by side
        other.start()
        open_ = list(figures)
        measured: dict[int, tuple[list[Metric], list[Metric]]] = {id(figure): ([], []) for figure in figures}
        for block in range(1, MOST_BLOCKS + 1):
            tests = _list_tests(open_)
            if not tests:
                return
            if not self._spending.affords(tests, 4):
                for figure in open_:
                    figure.problem = _NO_TIME
                return
            nodes = [test.item.nodeid for test in tests]
            seconds = 4 * self._spending.predict(tests)
            self._say(describe_block(names, block, MOST_BLOCKS, nodes, seconds))
            for arm in (undone, other, other, undone):
                open_ = self._run_leg(arm, open_, {key: pair[arm is other] for key, pair in measured.items()}, undone)
            open_ = [one for one in open_ if not decide(one, *measured[id(one)], block == MOST_BLOCKS)]

    def _run_leg(
        self, arm: Arm, figures: Sequence[_Figure], into: Mapping[int, list[Metric]], undone: Arm
    ) -> list[_Figure]:
        """One launch of one arm; the metrics that are still in the race."""
        if not figures:
            return []
        tests = _list_tests(figures)
        launched = self._spending.launch(arm, list_ids(tests), compute_limit(tests))
        for figure in figures:
            result = launched[figure.test.identity]
            metric = result.metrics.get(figure.verdict.metric_name)
            if metric is not None:
                into[id(figure)].append(metric)
            figure.problem = _describe_problem(figure, result, arm.name, was_undone=arm is undone)
        return [figure for figure in figures if not figure.problem]

    def _is_explained(self, figure: _Figure, undone: list[Metric], as_it_is: list[Metric], over: bool) -> bool:
        figure.found = figure.undoing.judge_undone(compute_loss_logs(undone), compute_loss_logs(as_it_is), over=over)
        figure.undone, figure.as_it_is = undone, as_it_is
        return figure.found is not None

    def _is_answered(self, figure: _Figure, undone: list[Metric], fewer: list[Metric], over: bool) -> bool:
        suffices = figure.undoing.suffices(compute_loss_logs(undone), compute_loss_logs(fewer), over=over)
        if suffices is None:
            return False
        assert figure.search is not None
        figure.by_part[figure.asked] = fewer
        try:
            figure.asked = frozenset(figure.search.send(suffices))
        except StopIteration as end:
            figure.search, figure.answer = None, frozenset(end.value)
        return True


_MOVING = (Explained.EXPLAINED, Explained.PARTLY)


def _list_changes(figure: _Figure) -> list[tuple[str, tuple[str, str]]]:
    return list(figure.changes.items())


def _list_recorded(changes: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    return {name: then for name, (then, _) in changes.items()}


def _list_tests(figures: Sequence[_Figure]) -> list[Held]:
    """Their tests, each once."""
    return list({figure.test.identity: figure.test for figure in figures}.values())


def _describe_problem(figure: _Figure, result: Measured, name: str, *, was_undone: bool) -> str:
    """Why a launch says nothing about a metric; empty if it does."""
    if result.problem:
        return f"the test came to nothing in {name}: {result.problem}"
    if figure.verdict.metric_name not in result.metrics:
        return f"the test checked no {figure.verdict.metric_name} in {name}: let it check the same in each launch"
    if was_undone:
        for variable, (then, _) in figure.changes.items():
            if (got := result.software.get(variable, "")) != then:
                got, expected = (f"{variable}={value}" if value else f"no {variable}" for value in (got, then))
                return (
                    f"{name} had {got}, expected {expected}: a conftest.py or a plugin sets it, so undo it there and "
                    "run the tests again"
                )
    return ""


def name_choices(judge: Judge, verdict: Verdict, now: Mapping[str, str]) -> Verdict:
    """Returns the verdict with NCCL's choices that differ from those of most launches of its record.

    Args:
        judge: of the run.
        verdict: on a metric that has a record.
        now: NCCL's choices in this run.
    """
    assert verdict.baseline is not None
    return replace(
        verdict, chosen=differing([info.nccl for info in judge.records.list_launch_infos(verdict.baseline)], now)
    )
