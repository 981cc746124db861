"""What the perf tests of one run measured: judged against the baselines, or recorded as them."""

from __future__ import annotations

import platform
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_gpuperf.machine import Machine
from pytest_gpuperf.options import Options
from pytest_gpuperf.provenance import commit_of, now, stamp, today
from pytest_gpuperf.verdicts import storage
from pytest_gpuperf.verdicts.baselines import (
    BaselineError,
    Baselines,
    LaunchFigure,
    LaunchInfo,
    MetricBaseline,
    TestBaseline,
)
from pytest_gpuperf.verdicts.excuse import excused
from pytest_gpuperf.verdicts.journal import Entry, Journal, Plan, same_software
from pytest_gpuperf.verdicts.judge import Outcome, Verdict, judge
from pytest_gpuperf.verdicts.metric import Metric
from pytest_gpuperf.verdicts.updating import Merged, Policy, merge


@dataclass(slots=True)
class _Recorded:
    body_hash: str
    metrics: dict[str, list[tuple[str, Metric]]] = field(default_factory=dict)
    """By name: launch id and figure."""

    def add(self, launch: str, metrics: Mapping[str, Metric]) -> None:
        """One more launch."""
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
    def failed(self) -> bool:
        """Whether something that was asked for was not done."""
        return self.problem is not None or (self.merged is not None and self.merged.failed)


class Measurements:
    """Judges each figure when its test ends, or keeps it until the run ends."""

    def __init__(self, options: Options, machine: Machine, rootpath: Path) -> None:
        self._options = options
        self._machine = machine
        self._rootpath = rootpath
        self._baselines: Baselines | None = None
        self._launches: dict[str, LaunchInfo] = {}
        self._launch_id = ""
        self._launch_number = 0
        self._launch: LaunchInfo | None = None
        self._recorded: dict[str, _Recorded] = {}
        self._plan: Plan | None = None
        self._journal: Journal | None = None
        self._restored: list[Entry] = []
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

    def load(self) -> None:
        """Reads the baselines, also before a recording: a file that cannot be read stops the run at once.

        Raises:
            BaselineError: the file is not one of this hardware's baselines.
        """
        if self._machine.gpus and not self._options.smoke:
            self._baselines = storage.load(self.path, self._machine.key)

    def plan(self, tests: Mapping[str, str]) -> set[tuple[str, int]]:
        """A recording is going to measure these tests, by node id with their bodies' hashes.

        Returns:
            What an interrupted recording has measured of them already: node id, number of the launch.

        Raises:
            JournalError: the recording cannot be gone on with.
        """
        self._plan = Plan(self._machine.key, commit_of(self._rootpath), self._options.launches, tests)
        if not self._options.resume:
            return set()
        self._journal, self._restored = Journal.resume(self.journal_path, self._plan)
        for entry in self._restored:
            self._launches[entry.launch] = entry.info
            self._recorded.setdefault(entry.test, _Recorded(entry.body_hash)).add(entry.launch, entry.metrics)
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
            environment={**software, **self._machine.software},
        )
        same_software(self.journal_path, self._restored, self._launch.environment)
        if self._plan is not None and self._journal is None and self.journal_problem is None:
            try:
                self._journal = Journal.begin(self.journal_path, self._plan)
            except OSError as error:
                self._without_journal(error)

    def conclude(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> list[Verdict]:
        """The verdicts on one test's figures; when recording, keeps them."""
        if self.judged:
            stored = None if self._baselines is None else self._baselines.tests.get(test)
            judgements = [
                judge(
                    test,
                    name,
                    metric,
                    hardware_key=self._machine.key,
                    body_hash=body_hash,
                    baseline=stored,
                    relative_bound=self._options.tolerance,
                )
                for name, metric in metrics.items()
            ]
            return [excused(verdict, stored, today()) for verdict in judgements]
        outcome = Outcome.RECORDED if self._options.update_baselines else Outcome.UNJUDGED
        verdicts = []
        for name, metric in metrics.items():
            found = Outcome.BROKEN if self._broken(metric) else outcome
            verdicts.append(Verdict(test, name, metric, found, self._machine.key))
        if self._options.update_baselines and not any(v.outcome is Outcome.BROKEN for v in verdicts):
            self._keep(test, body_hash, metrics)
        return verdicts

    def unjudged(self, test: str, metrics: Mapping[str, Metric]) -> list[Verdict]:
        """Figures that are only shown; one above its physical limit is a broken measurement all the same."""
        return [
            Verdict(test, name, metric, Outcome.BROKEN if self._broken(metric) else Outcome.UNJUDGED, self._machine.key)
            for name, metric in metrics.items()
        ]

    def candidate(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> Baselines | None:
        """What a test measured in this launch, as baselines; None for what could never be any."""
        measured = bool(self._machine.gpus) and not self._options.smoke
        if not measured or self._launch is None or any(self._broken(metric) for metric in metrics.values()):
            return None
        kept = _Recorded(body_hash)
        kept.add(self._launch_id, metrics)
        return Baselines(
            self._machine.key, self._machine.match, {self._launch_id: self._launch}, {test: _baseline(kept)}
        )

    def save(self, *, interrupted: bool = False) -> Saved | None:
        """Writes what was recorded; to a temporary folder where the baselines cannot be written.

        None if there is nothing to write: nothing recorded, tests that lack a launch, or a recording that was
        interrupted and can be resumed.
        """
        if self._journal is not None and interrupted:
            self._journal.close()
            return None
        saved = self._save()
        if self._journal is not None:
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
        policy = Policy(options.mode, options.accept_regression, options.tolerance)
        made = stamp(self._rootpath, options.reason)
        outcomes: list[Merged] = []

        def change(stored: Baselines | None) -> Baselines | None:
            outcomes.append(merge(stored or Baselines(key, match), candidate, policy, made))
            return outcomes[-1].baselines if outcomes[-1].written else None

        try:
            storage.update(self.path, key, change)
        except BaselineError as error:
            folder = Path(tempfile.mkdtemp(prefix="gpuperf-"))
            elsewhere = folder / self.path.name
            whole = merge(Baselines(key, match), candidate, Policy(tolerance=options.tolerance), made)
            storage.update(elsewhere, key, lambda _: whole.baselines)
            return Saved(elsewhere, len(tests), str(error))
        return Saved(self.path, len(outcomes[0].written), merged=outcomes[0])

    def incomplete(self) -> list[str]:
        """Tests that were recorded in some launches and not in all, and so are not written."""
        return sorted(test for test, kept in self._recorded.items() if not self._complete(kept))

    def _broken(self, metric: Metric) -> bool:
        return metric.above_limit and not self._options.smoke

    def _keep(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> None:
        assert self._launch is not None
        self._launches[self._launch_id] = self._launch
        self._recorded.setdefault(test, _Recorded(body_hash)).add(self._launch_id, metrics)
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
