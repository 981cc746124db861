"""Communication coverage as values that JSON has, for the results file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_gpuperf.features.mutating.coverage import Coverage, Outcome
from pytest_gpuperf.features.mutating.lines import show_path


def make_form(coverage: Coverage, root: Path) -> dict[str, Any]:
    """Everything that is known of a run with faults, the worst site first.

    Args:
        coverage: of the run.
        root: to which files are relative.
    """
    return {
        "noticed": len(coverage.of(Outcome.NOTICED)),
        "unnoticed": len(coverage.of(Outcome.UNNOTICED)),
        "equivalent": len(coverage.of(Outcome.EQUIVALENT)),
        "not_made": len(coverage.of(Outcome.NOT_MADE)),
        "left_over": len(coverage.left_over),
        "seconds": coverage.seconds,
        "seconds_of": dict(sorted(coverage.seconds_of.items())),
        "sites": [
            {
                "file": show_path(site.file, root),
                "line": site.line,
                "operation": site.operation,
                "over": site.over,
                "part": site.part,
                "calls": coverage.sites[site].count,
                "tests": coverage.tests(site),
                "faults": [
                    {
                        "kind": str(one.fault.kind),
                        "outcome": one.outcome.name.lower(),
                        "by": one.by,
                        "seconds": one.seconds,
                    }
                    for one in coverage.judged
                    if one.fault.site == site
                ],
            }
            for site in coverage.list_worst_first()
        ],
        "unreached": [
            {"file": show_path(call.file, root), "line": call.line, "operation": call.operation}
            for call in coverage.unreached
        ],
        "left_out": dict(sorted(coverage.left_out.items())),
    }
