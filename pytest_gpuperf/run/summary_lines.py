"""What the run as a whole has to say at its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence

from pytest_gpuperf.baselines.mode import Mode
from pytest_gpuperf.baselines.provenance import UNKNOWN, commit_of
from pytest_gpuperf.options import Options
from pytest_gpuperf.report.commands import Commands
from pytest_gpuperf.report.explain_lines import explanation_lines
from pytest_gpuperf.report.missing_lines import missing_lines
from pytest_gpuperf.report.recording_lines import gone_lines, recording_lines
from pytest_gpuperf.report.undecided_lines import noisy_lines, undecided_lines
from pytest_gpuperf.report.verdict_line import opinion_lines, run_lines, run_policy_lines
from pytest_gpuperf.repository import CannotRace, Repository
from pytest_gpuperf.run.gone import SeenTests
from pytest_gpuperf.run.judging import Judging
from pytest_gpuperf.run.recording import Recording
from pytest_gpuperf.verdicts.verdict import Verdict


class SummaryLines:
    """The closing lines of one run."""

    def __init__(
        self,
        options: Options,
        commands: Commands,
        seen: SeenTests,
        where: str,
        judging: Judging | None,
        recording: Recording | None,
        nodes: Callable[[], list[str]],
        of_features: Callable[[], list[str]],
    ) -> None:
        self._options = options
        self._commands = commands
        self._seen = seen
        self._where = where
        self._judging = judging
        self._recording = recording
        self._nodes = nodes
        self._of_features = of_features
        self.stored: Collection[str] = ()
        """Node ids of the tests that the baselines have entries of, once they are read."""

    def lines(self, verdicts: Sequence[Verdict]) -> list[str]:
        """What the summary says of a recording, or of a run as a whole that came to these verdicts."""
        gone = [*self._nodes(), *gone_lines(self._seen.gone(self.stored), self._where)]
        if self._recording is not None:
            return [*gone, *self._of_recording(self._recording)]
        shift = None if self._judging is None else self._judging.shift
        found = self._of_features()
        policy = run_policy_lines(self._options.policy, verdicts)
        github = os.environ.get("GITHUB_ACTIONS") == "true"
        missing = missing_lines(verdicts, self._commands.record_all, on_github=github)
        undecided = undecided_lines(verdicts, fails=self._options.undecided_fails)
        of_run = [*opinion_lines(verdicts), *run_lines(shift, verdicts), *found, *undecided, *noisy_lines(verdicts)]
        lines = [*gone, *policy, *missing, *of_run]
        return [*lines, *explanation_lines(verdicts)]

    def _of_recording(self, recording: Recording) -> list[str]:
        problem = [] if recording.journal_problem is None else [recording.journal_problem]
        journal = recording.journal_path if recording.resumable else None
        lines = recording_lines(recording.saved, journal=journal, unfit=recording.left_out(), accept=self._accept)
        return [*problem, *self._without_commit(recording), *lines]

    def _without_commit(self, recording: Recording) -> list[str]:
        """Says of a record that names no commit why, since no later run can race it."""
        root = self._commands.root
        if recording.saved is None or not recording.saved.tests or commit_of(root) != UNKNOWN:
            return []
        try:
            Repository.of(root).resolve("HEAD")
        except CannotRace as error:
            return [f"these baselines name no commit, so later runs cannot race it: {error}"]
        return []

    def _accept(self, identity: str) -> str:
        if self._options.mode is Mode.APPEND:
            launches = f"--launches={self._options.launches}"
            return self._commands.record(identity, launches, "--accept-regression", mode=Mode.APPEND.value)
        return self._commands.record(identity, "--accept-regression")
