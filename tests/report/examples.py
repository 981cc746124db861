"""Verdicts and reports as the summaries meet them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_gpuperf.baselines.schema import LaunchFigure, MetricBaseline
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.report.commands import Commands
from pytest_gpuperf.report.keyword import RANKS_KEYWORD
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.verdict import Verdict

KEY = "8x-nvidia-h200-nv18"
BASELINE = MetricBaseline("B/s", "higher", "", (LaunchFigure("a", 50, 350e9), LaunchFigure("b", 50, 362e9)))
SAME = Verdict(
    "t.py::test_a", "busbw", Metric(354e9, "B/s", "higher", limit=450e9), Outcome.SAME, KEY, BASELINE, -0.005, 0.05
)
UNJUDGED = Verdict("t.py::test_b", "time", Metric(27e-6, "s", "lower"), Outcome.UNJUDGED, KEY)
COMMANDS = Commands(Path("/src"), Path("/src"), gpus=8, bisects=True)
SKIPPED: dict[str, Any] = {"outcome": "skipped", "longrepr": ("t.py", 3, "Skipped: no GPUs")}


def report(when: str = "call", **attributes: Any) -> pytest.TestReport:
    """A report of one phase of a test on ranks."""
    outcome = attributes.get("outcome", "passed")
    defaults: dict[str, Any] = {
        "when": when,
        "nodeid": "t.py::test_a[2ranks]",
        "location": ("t.py", 3, "test_a[2ranks]"),
        "user_properties": [],
        "outcome": "passed",
        **{name: outcome == name for name in ("passed", "failed", "skipped")},
        "keywords": {RANKS_KEYWORD: 1},
        "longrepr": None,
        "longreprtext": str(attributes.get("longrepr", "")),
    }
    return cast(pytest.TestReport, SimpleNamespace(**{**defaults, **attributes}))
