"""What a run that records says at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.baselines.mode import Mode
from pytest_gpuperf.baselines.provenance import UNKNOWN, read_commit
from pytest_gpuperf.features.recording.options import RecordingOptions
from pytest_gpuperf.features.recording.recording import Recording
from pytest_gpuperf.features.recording.saving import Saved
from pytest_gpuperf.report.commands import Commands
from pytest_gpuperf.report.recording_lines import describe_unfit, update_lines
from pytest_gpuperf.report.units import format_count
from pytest_gpuperf.repository import CannotRace, Repository


@dataclass(frozen=True, slots=True)
class ClosingLines:
    """The closing lines of a recording."""

    recording: Recording
    options: RecordingOptions
    commands: Commands

    def lines(self) -> list[str]:
        """Returns what became of the recording, once it has ended."""
        recording = self.recording
        problem = [] if recording.journal_problem is None else [recording.journal_problem]
        journal = recording.journal_path if recording.resumable else None
        lines = format_recording(recording.saved, journal=journal, unfit=recording.left_out(), accept=self._accept)
        return [*problem, *self._explain_no_commit(), *lines]

    def _explain_no_commit(self) -> list[str]:
        """Says of a record that names no commit why, since no later run can race it."""
        root, saved = self.commands.root, self.recording.saved
        if saved is None or not saved.tests or read_commit(root) != UNKNOWN:
            return []
        try:
            Repository.of(root).resolve("HEAD")
        except CannotRace as error:
            return [f"these baselines name no commit, so later runs cannot race it: {error}"]
        return []

    def _accept(self, identity: str) -> str:
        if self.options.mode is Mode.APPEND:
            launches = f"--launches={self.options.launches}"
            return self.commands.record(identity, launches, "--accept-regression", mode=Mode.APPEND.value)
        return self.commands.record(identity, "--accept-regression")


def format_recording(
    saved: Saved | None, *, journal: Path | None, unfit: Mapping[str, str], accept: Callable[[str], str]
) -> list[str]:
    """The lines of a run that was to record.

    Args:
        saved: where the recording went; None if it was interrupted, or nothing was recorded.
        journal: what an interrupted recording left, to go on with; None if there is none.
        unfit: why tests that were recorded are not written.
        accept: the command that accepts a test's loss.
    """
    if journal is not None:
        why = "interrupted" if saved is None else saved.problem
        kept = f"what was measured is kept in {journal}"
        return [f"no baselines written: {why}; {kept}: go on with the same command and --resume"]
    lines = describe_unfit(unfit)
    if saved is None:
        return [*lines, "no baselines written"]
    if saved.problem is not None:
        lines.append(saved.problem)
    if saved.merged is not None:
        lines += update_lines(saved.merged, accept)
    if not saved.tests:
        return [*lines, "no baselines written"]
    return [*lines, f"baselines of {format_count(saved.tests, 'test')} written to {saved.where}"]
