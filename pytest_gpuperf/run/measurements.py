"""What the perf tests of one run measured: judged against the baselines, or recorded as them."""

from __future__ import annotations

import os
import platform
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_gpuperf.baselines.journal import Entry, Journal, RecordingPlan, same_software
from pytest_gpuperf.baselines.merge import Merged, UpdatePolicy, merge
from pytest_gpuperf.baselines.provenance import commit_of, now, settings, stamp, today
from pytest_gpuperf.baselines.schema import (
    BaselineError,
    Baselines,
    LaunchFigure,
    LaunchInfo,
    MetricBaseline,
    TestBaseline,
)
from pytest_gpuperf.baselines.storage import Files, Storage
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.options import Options
from pytest_gpuperf.verdicts.controls import Control, most
from pytest_gpuperf.verdicts.excuse import excused
from pytest_gpuperf.verdicts.judge import Judge
from pytest_gpuperf.verdicts.verdict import Outcome, Verdict


@dataclass(slots=True)
class _Recorded:
    body_hash: str
    metrics: dict[str, list[tuple[str, Metric]]] = field(default_factory=dict)
    """By name: launch id and figure."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Of the launches, by id."""

    def add(self, number: int, launch: str, metrics: Mapping[str, Metric]) -> None:
        """One more launch."""
        self.numbers[launch] = number
        for name, metric in metrics.items():
            self.metrics.setdefault(name, []).append((launch, metric))


@dataclass(frozen=True, slots=True)
class Saved:
    """Where a recording went."""

    path: Path
    tests: int
    problem: str | None = None
    """Why it did not go where it should; None if it did."""
    merged: Merged | None = None
    """What became of each test; None where the file could not be written."""

    @property
    def nowhere(self) -> bool:
        """Whether it could not be written at all."""
        return self.problem is not None and not self.tests

    @property
    def failed(self) -> bool:
        """Whether something that was asked for was not done."""
        return self.problem is not None or (self.merged is not None and self.merged.failed)


class Measurements:
    """Judges each figure when its test ends, or keeps it until the run ends."""

    def __init__(self, options: Options, machine: Machine, rootpath: Path) -> None:
        self._options = options
        self._storage: Storage = Files(options.baselines)
        self._machine = machine
        self._rootpath = rootpath
        self._judge: Judge | None = None
        self._launches: dict[str, LaunchInfo] = {}
        self._launch_id = ""
        self._launch_number = 0
        self._launch: LaunchInfo | None = None
        self._recorded: dict[str, _Recorded] = {}
        self._passing: tuple[str, str, Mapping[str, Metric]] | None = None
        """Test, body and figures of the test that a recording runs, once its body has come to its end."""
        self._problems: dict[str, str] = {}
        """What became of tests that did not pass, by test; of the first launch in which they did not."""
        self._plan: RecordingPlan | None = None
        self._journal: Journal | None = None
        self._restored: list[Entry] = []
        self._world_sizes: dict[str, int] = {}
        """Of the tests that the control workload tells about."""
        self.stored: frozenset[str] = frozenset()
        """Node ids of the tests that the baselines have entries of."""
        self.journal_problem: str | None = None
        """Why an interruption would lose what was measured; None if it would not."""

    @property
    def path(self) -> Path:
        """The file of this hardware's baselines."""
        return self._options.baselines / f"{self._machine.key}.json"

    @property
    def journal_path(self) -> Path:
        """Where a recording notes what it has measured so far."""
        return self._options.baselines / f".{self._machine.key}.journal"

    @property
    def judged(self) -> bool:
        """Whether figures are held against baselines: on GPUs, and not in a smoke run."""
        return bool(self._machine.gpus) and not self._options.smoke and not self._options.update_baselines

    def software(self) -> Mapping[str, str]:
        """Versions that the current launch runs with; empty before the first."""
        return {} if self._launch is None else self._launch.environment

    def load(self, tests: Iterable[str]) -> None:
        """Reads the baselines, also before a recording: a file that cannot be read stops the run at once.

        Args:
            tests: Node ids of the perf tests that are going to run.

        Raises:
            BaselineError: the file is not one of this hardware's baselines, or of other GPUs than these.
        """
        if self._machine.gpus and not self._options.smoke:
            baselines = self._storage.load(self._machine.key)
            if baselines is not None:
                baselines.require(self._machine.match, self.path)
                self.stored = frozenset(baselines.tests)
            policy, gpus = self._options.policy, self._machine.identity
            try:
                self._judge = Judge(self._machine.key, baselines, tests, policy, gpus=gpus, today=today())
            except ValueError as error:
                cure = "mend it there, or the ini keys gpuperf_tolerance and gpuperf_min_effect"
                raise BaselineError(self.path, str(error), cure) from error

    @property
    def judge(self) -> Judge:
        """The judge of this run; there is one once the baselines are read."""
        assert self._judge is not None
        return self._judge

    @property
    def shift(self) -> float | None:
        """By how much all figures moved alike, as a fraction, worse above 0; None if they did not."""
        return self._judge.shift if self.judged and self._judge is not None else None

    @property
    def moved(self) -> Mapping[str, float]:
        """What of the control workload moved, by how much, as a fraction, slower above 0."""
        return self._judge.moved if self.judged and self._judge is not None else {}

    def plan(self, tests: Mapping[str, str]) -> set[tuple[str, int]]:
        """A recording is going to measure these tests, by node id with their bodies' hashes.

        Returns:
            What an interrupted recording has measured of them already: node id, number of the launch.

        Raises:
            JournalError: the recording cannot be gone on with, or would be lost and nobody has said that it may.
        """
        self._plan = RecordingPlan(
            self._machine.key, commit_of(self._rootpath), self._options.launches, tests, self._machine.match
        )
        if self._options.resume is None:
            Journal.spare(self.journal_path, self._plan)
        if not self._options.resume:
            return set()
        self._journal, self._restored = Journal.resume(self.journal_path, self._plan)
        for entry in self._restored:
            self._launches[entry.launch] = entry.info
            self._recorded.setdefault(entry.test, _Recorded(entry.body_hash)).add(
                entry.number, entry.launch, entry.metrics
            )
        return {(entry.test, entry.number) for entry in self._restored}

    def begin_launch(self, number: int, software: Mapping[str, str]) -> None:
        """What is measured from now on belongs to a launch of this number, with these versions.

        Raises:
            JournalError: another run is recording, or the one that was interrupted ran with other versions.
        """
        self._launch_id = f"{now()}-{number}-{uuid.uuid4().hex[:6]}"
        self._launch_number = number
        self._launch = LaunchInfo(
            at=now(),
            commit=commit_of(self._rootpath),
            host=platform.node(),
            environment={**software, **self._machine.software, **settings(os.environ)},
            gpus=self._machine.identity,
        )
        same_software(self.journal_path, self._restored, self._launch.environment)
        if self._plan is not None and self._journal is None and self.journal_problem is None:
            try:
                self._journal = Journal.begin(self.journal_path, self._plan)
            except OSError as error:
                self._without_journal(error)

    @property
    def wants_control(self) -> bool:
        """Whether launches have a control workload."""
        return bool(self._machine.gpus) and not self._options.smoke

    def control(self, world_size: int, found: Mapping[str, Control]) -> None:
        """Takes the control workload of the current launch on so many ranks, by name."""
        assert self._launch is not None
        seconds = {name: control.seconds for name, control in found.items()}
        self._launch = replace(self._launch, control={**self._launch.control, **seconds})
        if self.judged:
            self.judge.controls.add(world_size, found, self._launch.environment)

    def runs_on(self, test: str, world_size: int) -> None:
        """A test runs on so many ranks, in the surroundings of the control workload."""
        self._world_sizes[test] = world_size

    def conclude(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> list[Verdict]:
        """The verdicts on one test's figures; when recording, they wait for the test's end."""
        if self.judged:
            verdicts = [self.judge.screen(test, name, metric, body_hash) for name, metric in metrics.items()]
            return [self._excused(verdict) for verdict in verdicts]
        outcome = Outcome.RECORDED if self._options.update_baselines else Outcome.UNJUDGED
        verdicts = []
        for name, metric in metrics.items():
            found = self._unjudged(metric, outcome)
            verdicts.append(Verdict(test, name, metric, found, self._machine.key))
        if self._options.update_baselines and all(verdict.outcome is outcome for verdict in verdicts):
            self._passing = test, body_hash, metrics
        return verdicts

    def unchecked(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> list[str]:
        """The metrics of a test that have a baseline, of the body that it has now, and that it did not check."""
        entry = self.judge.entry(test) if self.judged else None
        if entry is None or entry.body_hash != body_hash:
            return []
        return [name for name in entry.metrics if name not in metrics]

    def ended(self, test: str, number: int, problem: str) -> None:
        """A test of a recording has ended: keeps its figures if it has passed.

        Args:
            test: Node id.
            number: Of the launch.
            problem: What became of it, "failed" for example; empty if it passed.
        """
        passing, self._passing = self._passing, None
        if problem:
            of = f"launch {number} of {self._options.launches}"
            self._problems.setdefault(test, f"it {problem} in {of}: record it again once it passes in all of them")
        elif passing is not None and passing[0] == test:
            self._keep(*passing)

    def confirmed(self, suspect: Verdict, figures: Sequence[Metric]) -> Verdict:
        """What fresh launches make of a suspect; none where no number of them would decide."""
        verdict = self._excused(self.judge.confirm(suspect, figures))
        if verdict.outcome is not Outcome.REGRESSED:
            return verdict
        world_size = self._world_sizes.get(verdict.test)
        if world_size is None:
            return verdict
        known = verdict.expected
        center = known.center if known is not None and known.holds(today()) else None
        at_limit = most([figure.power_capped for figure in (suspect.metric, *figures)])
        return self.judge.explained(verdict, world_size, at_limit=at_limit, center=center) or verdict

    def _excused(self, verdict: Verdict) -> Verdict:
        return excused(verdict, self.judge.entry(verdict.test), today())

    def unjudged(self, test: str, metrics: Mapping[str, Metric]) -> list[Verdict]:
        """Figures that are only shown; one above its physical limit is a broken measurement all the same."""
        return [
            Verdict(test, name, metric, self._unjudged(metric, Outcome.UNJUDGED), self._machine.key)
            for name, metric in metrics.items()
        ]

    def candidate(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> Baselines | None:
        """What a test measured in this launch, as baselines; None for what could never be any."""
        measured = bool(self._machine.gpus) and not self._options.smoke
        if (
            not measured
            or self._launch is None
            or any(metric.invalid or metric.above_limit for metric in metrics.values())
        ):
            return None
        kept = _Recorded(body_hash)
        kept.add(self._launch_number, self._launch_id, metrics)
        return Baselines(
            self._machine.key, self._machine.match, {self._launch_id: self._launch}, {test: _baseline(kept)}
        )

    def save(self, *, interrupted: bool = False) -> Saved | None:
        """Writes what was recorded; to a temporary folder where the baselines cannot be written.

        None if there is nothing to write: nothing recorded, tests that lack a launch, or a recording that was
        interrupted and can be resumed. One that could be written nowhere can be resumed too.
        """
        if self._journal is not None and interrupted:
            self._journal.close()
            return None
        saved = self._save()
        if self._journal is not None and saved is not None and saved.nowhere:
            self._journal.close()
        elif self._journal is not None:
            self._journal.remove()
            self._journal = None
        return saved

    @property
    def resumable(self) -> bool:
        """Whether a journal is left that --resume goes on with."""
        return self._journal is not None

    def _save(self) -> Saved | None:
        complete = {test: kept for test, kept in self._recorded.items() if self._complete(kept)}
        if not complete:
            return None
        key, match = self._machine.key, self._machine.match
        tests = {test: _baseline(kept) for test, kept in complete.items()}
        used = {id_ for kept in complete.values() for figures in kept.metrics.values() for id_, _ in figures}
        candidate = Baselines(key, match, {id_: self._launches[id_] for id_ in used}, tests)
        options = self._options
        policy = UpdatePolicy(options.mode, options.accept_regression, options.policy.detect)
        made = stamp(self._rootpath, options.reason)
        outcomes: list[Merged] = []

        def change(stored: Baselines | None) -> Baselines | None:
            if stored is not None:
                stored.require(match, self.path)  # another run may have written it meanwhile
            outcomes.append(merge(stored or Baselines(key, match), candidate, policy, made))
            return outcomes[-1].baselines if outcomes[-1].written else None

        try:
            self._storage.update(key, change)
        except BaselineError as error:
            whole = merge(Baselines(key, match), candidate, UpdatePolicy(tolerance=options.policy.detect), made)
            try:
                elsewhere = Files(Path(tempfile.mkdtemp(prefix="gpuperf-")))
                elsewhere.update(key, lambda _: whole.baselines)
            except (OSError, BaselineError) as another:
                return Saved(self.path, 0, f"{error}; nor can it be kept in a temporary folder: got {another!r}")
            return Saved(elsewhere.path(key), len(tests), str(error))
        return Saved(self.path, len(outcomes[0].written), merged=outcomes[0])

    def left_out(self) -> dict[str, str]:
        """Why tests that were recorded in some launches, and not in all alike, are not written."""
        return {
            test: self._problems.get(test) or self._lack(kept)
            for test, kept in sorted(self._recorded.items())
            if not self._complete(kept)
        }

    def _lack(self, kept: _Recorded) -> str:
        launches = self._options.launches
        for number in range(1, launches + 1):
            if number not in kept.numbers.values():
                return f"it did not run in launch {number} of {launches}: let the recording run to its end"
        for name, figures in kept.metrics.items():
            if lacking := sorted(kept.numbers[id_] for id_ in kept.numbers.keys() - {id_ for id_, _ in figures}):
                return (
                    f"it checked no {name!r} in launch {lacking[0]} of {launches}, as it did in others: "
                    "let it check the same metrics in each"
                )
        return "it ran more than once in a launch: select it once"

    def _unjudged(self, metric: Metric, otherwise: Outcome) -> Outcome:
        if metric.invalid:
            return Outcome.INVALID
        return Outcome.BROKEN if metric.above_limit and not self._options.smoke else otherwise

    def _keep(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> None:
        assert self._launch is not None
        self._launches[self._launch_id] = self._launch
        self._recorded.setdefault(test, _Recorded(body_hash)).add(self._launch_number, self._launch_id, metrics)
        if self._journal is not None:
            entry = Entry(self._launch_number, self._launch_id, self._launch, test, body_hash, metrics)
            try:
                self._journal.note(entry)
            except OSError as error:
                self._journal.remove()  # with a launch left out, it is nothing to go on with
                self._journal = None
                self._without_journal(error)

    def _without_journal(self, error: OSError) -> None:
        # The recording goes on: it can still come to its end.
        self.journal_problem = f"journal {str(self.journal_path)!r}: cannot be written: got {error!r}"

    def _complete(self, kept: _Recorded) -> bool:
        return bool(kept.metrics) and all(len(figures) == self._options.launches for figures in kept.metrics.values())


def _baseline(kept: _Recorded) -> TestBaseline:
    metrics = {}
    for name, figures in kept.metrics.items():
        first = figures[0][1]
        metrics[name] = MetricBaseline(
            unit=first.unit,
            better=first.better,
            clock=first.clock,
            launches=tuple(
                LaunchFigure(launch, metric.samples, metric.value, metric.q1, metric.q3) for launch, metric in figures
            ),
        )
    return TestBaseline(body_hash=kept.body_hash, metrics=metrics)
