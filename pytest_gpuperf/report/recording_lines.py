"""What the summary says when a run has ended: of a recording, and of tests that are gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytest_gpuperf.baselines.recorded import Saved
from pytest_gpuperf.report.units import format_count
from pytest_gpuperf.report.update_lines import unfit_lines, update_lines


def recording_lines(
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
    lines = unfit_lines(unfit)
    if saved is None:
        return [*lines, "no baselines written"]
    if saved.problem is not None:
        lines.append(saved.problem)
    if saved.merged is not None:
        lines += update_lines(saved.merged, accept)
    if not saved.tests:
        return [*lines, "no baselines written"]
    return [*lines, f"baselines of {format_count(saved.tests, 'test')} written to {saved.where}"]


def gone_lines(tests: Sequence[str], where: str) -> list[str]:
    """What the summary says of tests that are gone, and of which the baselines at this place have entries."""
    if not tests:
        return []
    one = len(tests) == 1
    what = "1 test that is" if one else f"{len(tests)} tests that are"
    cure = f'delete {"its entry" if one else "their entries"} under "tests" in {where}'
    return [f"the baselines hold {what} no longer there: {', '.join(tests)}: {cure}"]
