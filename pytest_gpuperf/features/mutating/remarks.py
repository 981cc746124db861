"""Unnoticed faults as remarks about lines of source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_gpuperf.features.mutating.coverage import Coverage, Outcome
from pytest_gpuperf.features.mutating.lines import join_names
from pytest_gpuperf.report.annotation import Annotation


def iterate_remarks(coverage: Coverage) -> Iterator[Annotation]:
    """A remark for each line with unnoticed faults, the worst first, and then for each call that no program makes."""
    for site in coverage.list_worst_first():
        missed = [one.fault.kind for one in coverage.of(Outcome.UNNOTICED, site)]
        if missed and site.file:
            total = len(missed) + len(coverage.of(Outcome.NOTICED, site))
            title = f"{len(missed)} of {total} faults unnoticed in {site.operation}"
            reached = join_names(coverage.tests(site), verbose=False)
            yield Annotation(Path(site.file), site.line, title, f"{', '.join(missed)}\nreached by {reached}")
    for call in coverage.unreached:
        yield Annotation(Path(call.file), call.line, f"no observed program calls {call.operation}", "no test guards it")
