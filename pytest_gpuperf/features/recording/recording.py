"""Metrics of perf tests are kept, launch after launch, and written when the run ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_gpuperf.baselines.merge import UpdatePolicy
from pytest_gpuperf.baselines.provenance import read_commit, stamp
from pytest_gpuperf.baselines.recorded import Launch, RecordedTest
from pytest_gpuperf.baselines.schema import Baselines
from pytest_gpuperf.baselines.storage import make_recording_journal_path, make_storage
from pytest_gpuperf.features.recording.journal import Entry, Journal, RecordingPlan, require_same_software
from pytest_gpuperf.features.recording.options import RecordingOptions
from pytest_gpuperf.features.recording.saving import Saved, save
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.options import Options
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.verdict import Verdict, judge_unjudged


@dataclass(frozen=True, slots=True)
class _Passing:
    """A test whose body has ended well, and whose teardown may still fail."""

    test: str
    body_hash: str
    metrics: Mapping[str, Metric]


class Recording:
    """Keeps the metrics of tests that pass whole; a journal keeps them too, so that a recording can be resumed."""

    shift: float | None = None
    knows: bool = False

    def __init__(self, machine: Machine, options: Options, recorded: RecordingOptions, rootpath: Path) -> None:
        """Nothing is recorded yet.

        Args:
            machine: of the run.
            options: what the user said of the run.
            recorded: what the user said of the recording.
            rootpath: of the checkout whose commit is measured.
        """
        self._storage = make_storage(options.baselines)
        self.journal_path = make_recording_journal_path(options.baselines, machine.key)
        """The journal of what was measured so far."""
        self._machine = machine
        self._options = recorded
        self._policy = options.policy
        self._rootpath = rootpath
        self._plan: RecordingPlan | None = None
        self._journal: Journal | None = None
        self._restored: list[Entry] = []
        self._launches: dict[str, Launch] = {}
        self._tests: dict[str, RecordedTest] = {}
        self._passing: _Passing | None = None
        self._problems: dict[str, str] = {}
        """By test: what became of it in the first launch in which it did not pass."""
        self.launch: Launch | None = None
        """The current one."""
        self.journal_problem: str | None = None
        """Why an interruption would lose what was measured; None if it would not."""
        self.nccl: Mapping[str, str] = {}
        """What NCCL chose in this run, for all of its launches."""
        self.saved: Saved | None = None
        """The place of the recording, once the run has ended."""

    def plan(self, tests: Mapping[str, str]) -> set[tuple[str, int]]:
        """Says which tests are going to be measured, by node id with their bodies' hashes.

        Returns:
            What an interrupted recording has measured of them already: node id, number of the launch.

        Raises:
            JournalError: the recording cannot be resumed, or would be lost and nobody has said that it may.
        """
        machine, launches = self._machine, self._options.launches
        self._plan = RecordingPlan(machine.key, read_commit(self._rootpath), launches, tests, machine.match)
        if self._options.resume is None:
            Journal.spare(self.journal_path, self._plan)
        if not self._options.resume:
            return set()
        self._journal, self._restored = Journal.resume(self.journal_path, self._plan)
        for entry in self._restored:
            self._launches[entry.launch] = Launch(entry.number, entry.launch, entry.info)
            self._record(entry.test, entry.body_hash).add(entry.number, entry.launch, entry.metrics)
        return {(entry.test, entry.number) for entry in self._restored}

    def begin_launch(self, launch: Launch) -> None:
        """What is recorded from now on belongs to this launch.

        Raises:
            JournalError: another run is recording, the one that was interrupted ran with other versions, or another
                recording was interrupted while this one waited for its lease.
        """
        self.launch = launch
        require_same_software(self.journal_path, self._restored, launch.info.environment)
        if self._plan is not None and self._journal is None and self.journal_problem is None:
            try:
                spare = self._options.resume is None
                self._journal = Journal.begin(self.journal_path, self._plan, spare=spare)
            except OSError as error:
                self._note_journal_problem(error)

    def conclude(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> list[Verdict]:
        """Holds the metrics of a test until it has ended; those of a broken measurement are not kept."""
        verdicts = judge_unjudged(test, metrics, self._machine.key, Outcome.RECORDED)
        if all(verdict.outcome is Outcome.RECORDED for verdict in verdicts):
            self._passing = _Passing(test, body_hash, metrics)
        return verdicts

    def list_unchecked(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> list[str]:
        """None: nothing is asked of a baseline."""
        return []

    def note_ended(self, test: str, number: int, problem: str) -> None:
        """Keeps the metrics of a test that has passed whole.

        Args:
            test: node id.
            number: of the launch.
            problem: what became of the test, "failed" for example; empty if it passed.
        """
        passing, self._passing = self._passing, None
        if problem:
            of = f"launch {number} of {self._options.launches}"
            self._problems.setdefault(test, f"it {problem} in {of}: record it again once it passes in all of them")
        elif passing is not None and passing.test == test:
            self._keep(passing)

    def save(self, *, interrupted: bool) -> Saved | None:
        """Writes what was recorded; to a temporary folder if the baselines cannot be written.

        None if there is nothing to write: nothing was recorded, tests lack a launch, or the recording was interrupted
        and can be resumed. One that could be written nowhere can be resumed too.
        """
        if self._journal is not None and interrupted:
            self._journal.close()
            return None
        self.saved = self._save()
        if self._journal is not None and self.saved is not None and self.saved.nowhere:
            self._journal.close()
        elif self._journal is not None:
            self._journal.remove()
            self._journal = None
        return self.saved

    @property
    def resumable(self) -> bool:
        """Whether a journal is left that --resume goes on with."""
        return self._journal is not None

    def left_out(self) -> dict[str, str]:
        """Why tests that were recorded in some launches, and not in all alike, are not written."""
        launches = self._options.launches
        return {
            test: self._problems.get(test) or kept.lack(launches)
            for test, kept in sorted(self._tests.items())
            if not kept.complete(launches)
        }

    def _save(self) -> Saved | None:
        complete = {test: kept for test, kept in self._tests.items() if kept.complete(self._options.launches)}
        if not complete:
            return None
        used = set().union(*(kept.launches() for kept in complete.values()))
        candidate = Baselines(
            self._machine.key,
            self._machine.match,
            {id_: replace(self._launches[id_].info, nccl=self.nccl) for id_ in used},
            {test: kept.entry() for test, kept in complete.items()},
        )
        options = self._options
        policy = UpdatePolicy(options.mode, options.accept_regression, self._policy.minimum_slowdown)
        return save(self._storage, candidate, policy, stamp(self._rootpath, options.reason))

    def _record(self, test: str, body_hash: str) -> RecordedTest:
        return self._tests.setdefault(test, RecordedTest(body_hash))

    def _keep(self, passing: _Passing) -> None:
        launch = self.launch
        assert launch is not None
        self._launches[launch.id] = launch
        self._record(passing.test, passing.body_hash).add(launch.number, launch.id, passing.metrics)
        if self._journal is None:
            return
        entry = Entry(launch.number, launch.id, launch.info, passing.test, passing.body_hash, passing.metrics)
        try:
            self._journal.note(entry)
        except OSError as error:
            self._journal.remove()  # with a launch left out, it is nothing to go on with
            self._journal = None
            self._note_journal_problem(error)

    def _note_journal_problem(self, error: OSError) -> None:
        # The recording goes on: it can still come to its end.
        self.journal_problem = f"journal {str(self.journal_path)!r}: cannot be written: got {error!r}"
