"""What the summary of a recording says: what was written, what was left out and why, and how to go on."""

from __future__ import annotations

from pytest_gpuperf.baselines.merge import Mode
from pytest_gpuperf.options import Options
from pytest_gpuperf.report.commands import Commands
from pytest_gpuperf.report.units import format_count
from pytest_gpuperf.report.update_lines import unfit_lines, update_lines
from pytest_gpuperf.run.measurements import Measurements, Saved


def recording_lines(options: Options, measurements: Measurements, saved: Saved | None, commands: Commands) -> list[str]:
    """The lines of a run that was to record.

    Args:
        options: what the user said.
        measurements: what was measured.
        saved: where it went, once the run has ended.
        commands: for what the user has to accept.
    """

    def accept(identity: str) -> str:
        if options.mode is Mode.APPEND:
            launches = f"--launches={options.launches}"
            return commands.record(identity, launches, "--accept-regression", mode=Mode.APPEND.value)
        return commands.record(identity, "--accept-regression")

    lines = [] if measurements.journal_problem is None else [measurements.journal_problem]
    if measurements.resumable:
        why = "interrupted" if saved is None else saved.problem
        kept = f"what was measured is kept in {measurements.journal_path}"
        return [*lines, f"no baselines written: {why}; {kept}: go on with the same command and --resume"]
    lines += unfit_lines(measurements.left_out())
    if saved is None:
        return [*lines, "no baselines written"]
    if saved.problem is not None:
        lines.append(saved.problem)
    if saved.merged is not None:
        lines += update_lines(saved.merged, accept)
    if not saved.tests:
        return [*lines, "no baselines written"]
    return [*lines, f"baselines of {format_count(saved.tests, 'test')} written to {saved.path}"]
