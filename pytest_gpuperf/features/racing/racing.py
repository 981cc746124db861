"""More launches of suspects: they are cleared against the record, or race the code that was right.

All suspects of a run share the launches. Those of the present code alone are made in this process, like those that were
recorded. In a race each arm is a child process that makes launches of one checkout's tests; so neither has an advantage
over the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import pytest

from pytest_gpuperf.features.racing.arms.arm import Arm, Measured
from pytest_gpuperf.features.racing.arms.arms import Arms
from pytest_gpuperf.features.racing.bisecting import bisect_lost, list_regressed
from pytest_gpuperf.features.racing.blocks import Blocks
from pytest_gpuperf.features.racing.changed_code import ChangedCode
from pytest_gpuperf.features.racing.contest import Contest
from pytest_gpuperf.features.racing.lines import (
    describe_block,
    describe_clearing,
    describe_no_race,
    describe_same_code,
    describe_second_launch,
)
from pytest_gpuperf.features.racing.means import Means
from pytest_gpuperf.features.racing.options import RaceOptions
from pytest_gpuperf.features.racing.same_code import LAUNCHES, SameCode
from pytest_gpuperf.features.racing.spending import PATIENCE, NoTimeLeft, compute_limit, list_ids
from pytest_gpuperf.features.racing.suspect_judge import SuspectJudge
from pytest_gpuperf.features.racing.suspects import Held, HeldReports
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.repository import CannotRace, Repository
from pytest_gpuperf.run.body_hash import hash_body
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.race import MOST_BLOCKS
from pytest_gpuperf.verdicts.rule import MOST_CLEARING, MOST_LAUNCHES
from pytest_gpuperf.verdicts.verdict import Verdict

_FULL_HASH = 40  # letters


@dataclass(slots=True)
class _Entry:
    """A test in a race: what both arms measured so far, by metric."""

    test: Held
    old: dict[str, list[Metric]] = field(default_factory=dict)
    present: dict[str, list[Metric]] = field(default_factory=dict)
    blocks: int = 0
    """How many blocks are whole: two launches of each arm."""

    def measured(self, name: str, against: str) -> Blocks:
        """Return what the whole blocks measured."""
        launches = 2 * self.blocks
        return Blocks(self.old[name][:launches], self.present[name][:launches], against)


class Racing:
    """What is launched to decide about suspects, and in which order."""

    def __init__(
        self,
        held: HeldReports,
        deciding: SuspectJudge | Contest,
        means: Means,
        options: RaceOptions,
        moved: Callable[[Sequence[Held]], None],
        same_code: SameCode | None = None,
    ) -> None:
        """Nothing is launched yet.

        Args:
            held: the suspects.
            deciding: decides about them: against the record, or by races alone.
            means: makes the launches.
            options: what the user asked for of races.
            moved: is called with the tests once all are decided, before they are reported.
            same_code: decides about suspects whose code did not change; None if they race all the same.
        """
        self._held = held
        self._deciding = deciding
        self._means = means
        self._options = options
        self._moved = moved
        self._same_code = same_code
        self._changes = ChangedCode(means.folder)
        self._old: dict[str, Arm] = {}
        """Arms of other code that are open, by commit."""
        self.culprits: list[str] = []
        """What a bisection found, a line each."""

    def require(self) -> None:
        """Looks for the commit that the user named, before anything is measured.

        Raises:
            CannotRace: it is not there.
        """
        if self._options.against:
            repository = Repository.of(self._means.folder)
            self._means.require_on_nodes(repository, repository.resolve(self._options.against))

    def protocol(self, item: pytest.Function, nextitem: pytest.Item | None, *, at_once: bool) -> None:
        """Runs a perf test.

        Args:
            item: the test.
            nextitem: what runs after it.
            at_once: whether a suspect is decided before the next test, in launches of its own.
        """
        self._held.run(item, nextitem)
        if at_once:
            self.decide(whole_run=False)

    def decide(self, *, whole_run: bool) -> None:
        """Decides about all suspects, and reports them; if interrupted, it leaves them to ``release``.

        Args:
            whole_run: whether all tests of the run have run, and in this process.
        """
        if moved := list(self._deciding.moved) if whole_run else []:
            self._launch_again(moved)
        self._clear()
        by_commit = self._group_by_commit()
        if self._same_code is not None:
            for commit in [commit for commit in by_commit if self._same_code.of(commit)]:
                self._decide_same_code(self._same_code, commit, by_commit.pop(commit))
        if self._means.cannot:
            for test in self._held.tests:
                test.no_race = self._means.cannot
        elif by_commit:
            self._means.vacate()
            with closing(self._means.open_arms(list_ids(self._held.tests))) as arms:
                for commit, racing in by_commit.items():
                    self._race(arms, commit, racing)
                if self._options.bisect:
                    self._bisect(arms)
            self._old.clear()
        self._decide_by_record()
        self._note_changes()
        self._moved(self._held.tests)
        self._held.release()

    def _decide(self, test: Held, verdict: Verdict) -> None:
        test.decide(self._deciding.name_differences(verdict))

    def _note_changes(self) -> None:
        """Adds to each verdict on slower code the changed files that its test imports."""
        for test in self._held.tests:
            for verdict in test.verdicts:
                if verdict.outcome is not Outcome.REGRESSED:
                    continue
                if commit := self._deciding.commit_to_race(verdict):
                    test.decide(replace(verdict, changed=self._changes.of(test.item, commit)))

    def release(self) -> None:
        """Reports suspects that nothing was decided about, since the run ends."""
        self._held.release()

    def _launch_again(self, tests: Sequence[str]) -> None:
        self._means.say(describe_second_launch(len(tests)))
        launched = self._means.spending.launch(self._means.here, tests, PATIENCE * len(tests))
        for test, measured in launched.items():
            self._deciding.second(test, measured.metrics)

    def _clear(self) -> None:
        self._decide_by_launches([test for test in self._held.tests if not any(one.baseline for one in test.suspects)])
        for number in range(1, MOST_CLEARING + 1):  # at most; the judge says when it is enough
            tests = [
                test
                for test in self._held.tests
                if any(self._deciding.may_clear(one, test.present.get(one.metric_name, ())) for one in test.suspects)
            ]
            if not tests or not self._affords(tests, 1):
                return
            self._means.say(
                describe_clearing(number, MOST_CLEARING, _list_names(tests), self._means.spending.predict(tests))
            )
            self._launch_here(tests)
            self._decide_by_launches(tests)

    def _decide_by_launches(self, tests: Sequence[Held]) -> None:
        """Decides about the suspects of these tests that launches of the present code clear, or confirm."""
        for test in tests:
            for suspect in test.suspects:
                figures = test.present.get(suspect.metric_name, [])
                if (verdict := self._deciding.clear(suspect, figures)) is not None:
                    self._decide(test, verdict)

    def _decide_same_code(self, same: SameCode, commit: str, tests: Sequence[Held]) -> None:
        """Launches the present code, which is the record's: there is nothing to race."""
        earlier = {test.identity: {name: len(figures) for name, figures in test.present.items()} for test in tests}
        for number in range(1, LAUNCHES + 1):
            open_ = [test for test in tests if test.suspects and not test.broken]
            if not open_ or not self._affords(open_, LAUNCHES + 1 - number):
                return
            self._means.say(
                describe_same_code(
                    number, LAUNCHES, _shorten_commit(commit), _list_names(open_), self._means.spending.predict(open_)
                )
            )
            self._launch_here(open_)
        for test in tests:
            for suspect in [] if test.broken else test.suspects:
                name = suspect.metric_name
                launches = test.present[name][earlier[test.identity].get(name, 0) :]
                self._decide(test, same.verdict(suspect, launches, _shorten_commit(commit)))

    def _launch_here(self, tests: Sequence[Held]) -> None:
        """One more launch of the present code beside the first one; a test that it breaks is broken."""
        launched = self._means.spending.launch(self._means.here, list_ids(tests), compute_limit(tests))
        for test in tests:
            self._take(test, launched[test.identity], test.present)

    def _group_by_commit(self) -> dict[str, list[Held]]:
        """The tests that race, by what they race."""
        found: dict[str, list[Held]] = {}
        for test in self._held.tests:
            for suspect in test.suspects:
                commit = self._deciding.commit_to_race(suspect)
                if commit is None:
                    test.no_race = "the baseline names no clean commit: commit the code, then record the baseline again"
                elif test not in found.setdefault(commit, []):
                    found[commit].append(test)
        return found

    def _race(self, arms: Arms, commit: str, tests: Sequence[Held]) -> None:
        python, build = self._options.python, self._options.build
        entries, against = [_Entry(test) for test in tests], _shorten_commit(commit or str(python))
        try:
            old = arms.of(commit, python, build) if commit else arms.present(python)
            present = arms.present()
            self._old[commit] = old
            old.start()  # both collect their tests side by side
            present.start()
            self._run_race(old, present, entries, against)
        except NoTimeLeft:
            self._stop_race(entries, against)
        except CannotRace as error:
            for test in tests:
                if test.suspects:
                    test.no_race = str(error)

    def _bisect(self, arms: Arms) -> None:
        good, build = self._options.against, self._options.build
        assert good is not None

        def race(commit: str, tests: Sequence[Held]) -> None:
            try:
                with closing(arms.of(commit, None, build)) as present:
                    self._run_race(self._old[good], present, [_Entry(test) for test in tests], _shorten_commit(good))
            except CannotRace as error:
                for test in tests:
                    test.no_race = test.no_race or str(error)

        if tests := list_regressed(self._held.tests):
            self.culprits += bisect_lost(tests, self._means.folder, good, race, self._means.say)

    def _run_race(self, old: Arm, present: Arm, entries: list[_Entry], against: str) -> None:
        for block in range(1, MOST_BLOCKS + 1):
            tests = [entry.test for entry in entries]
            if not tests:
                return
            if not self._means.spending.affords(tests, 4):
                self._stop_race(entries, against)
                return
            self._means.say(
                describe_block(block, MOST_BLOCKS, against, _list_names(tests), 4 * self._means.spending.predict(tests))
            )
            for arm in (old, present, present, old):
                entries = self._run_leg(arm, arm is old, entries)
            for entry in entries:
                entry.blocks = block
                for suspect in entry.test.suspects:
                    measured = entry.measured(suspect.metric_name, against)
                    over = block == MOST_BLOCKS
                    if (verdict := self._deciding.judge_race(suspect, measured, over=over)) is not None:
                        self._decide(entry.test, verdict)
            entries = [entry for entry in entries if entry.test.suspects]

    def _run_leg(self, arm: Arm, is_old: bool, entries: Sequence[_Entry]) -> list[_Entry]:
        """One launch of one arm; the entries that are still in the race."""
        tests = [entry.test for entry in entries]
        if not tests:
            return []
        launched = self._means.spending.launch(arm, list_ids(tests), compute_limit(tests))
        for entry in entries:
            measured = launched[entry.test.identity]
            if not is_old:
                self._take(entry.test, measured, entry.present)
            elif why := _describe_mismatch(entry.test, measured, arm.name):
                entry.test.no_race = why
            else:
                _add(measured, entry.old)
        return [entry for entry in entries if entry.test.suspects and not entry.test.no_race]

    def _decide_by_record(self) -> None:
        """What cannot race is decided by launches of the present code alone, if at all."""
        for number in range(1, MOST_LAUNCHES + 1):
            tests = [test for test in self._held.tests if test.no_race]
            for test in tests:
                for suspect in test.suspects:
                    figures = test.present.get(suspect.metric_name, [])
                    over = len(figures) >= MOST_LAUNCHES - 1
                    verdict = self._deciding.not_raced(suspect, figures, test.no_race, over=over)
                    if verdict is not None:
                        self._decide(test, verdict)
            open_ = [test for test in tests if test.suspects]
            if not open_ or not self._affords(open_, 1):
                return
            self._means.say(
                describe_no_race(number, MOST_LAUNCHES, _list_names(open_), self._means.spending.predict(open_))
            )
            self._launch_here(open_)

    def _take(self, test: Held, measured: Measured, into: dict[str, list[Metric]]) -> None:
        lacking = [one.metric_name for one in test.suspects if one.metric_name not in measured.metrics]
        if measured.problem:
            test.broken = f"a later launch of the test came to nothing: {measured.problem}"
        elif lacking:
            names = ", ".join(lacking)
            test.broken = f"the test checked no {names} in a later launch, as it had before"
        else:
            _add(measured, into)

    def _affords(self, tests: Sequence[Held], launches: int) -> bool:
        """Whether the budget has room for so many launches; if not, the tests are undecided."""
        if self._means.spending.affords(tests, launches):
            return True
        self._leave_open(tests)
        return False

    def _stop_race(self, entries: Sequence[_Entry], against: str) -> None:
        """No time is left for another block: what the last ones measured is shown."""
        for entry in entries:
            for suspect in entry.test.suspects if entry.blocks else ():
                measured = entry.measured(suspect.metric_name, against)
                self._decide(entry.test, self._deciding.judge_stopped(suspect, measured))
        self._leave_open([entry.test for entry in entries])

    def _leave_open(self, tests: Sequence[Held]) -> None:
        """No time is left for the suspects of these tests."""
        for test in tests:
            for suspect in test.suspects:
                figures = test.present.get(suspect.metric_name, [])
                self._decide(test, self._deciding.out_of_time(suspect, figures))


def _shorten_commit(commit: str) -> str:
    """A full hash as people read it; another name as it is."""
    return commit[:12] if len(commit) == _FULL_HASH else commit


def _list_names(tests: Sequence[Held]) -> list[str]:
    return [test.item.nodeid for test in tests]


def _add(measured: Measured, into: dict[str, list[Metric]]) -> None:
    for name, metric in measured.metrics.items():
        into.setdefault(name, []).append(metric)


def _describe_mismatch(test: Held, measured: Measured, name: str) -> str:
    """Why what the old code measured cannot be held against the test's metrics; empty if it can."""
    if measured.problem:
        return f"the test came to nothing in {name}: {measured.problem}"
    if measured.body_hash != hash_body(test.item):
        return f"the test's body is another in {name}: compare commits in which it is the same"
    for suspect in test.suspects:
        metric, old = suspect.metric, measured.metrics.get(suspect.metric_name)
        if old is None:
            return f"the test checks no {suspect.metric_name} in {name}: compare commits in which it does"
        # Stricter than find_mismatch: both were measured just now, so an unknown clock is another one.
        if (old.unit, old.better, old.clock) != (metric.unit, metric.better, metric.clock):
            return (
                f"{suspect.metric_name} is in {old.unit!r} by {old.clock!r} in {name}, and now in {metric.unit!r} by "
                f"{metric.clock!r}: compare commits in which it is the same"
            )
    return ""
