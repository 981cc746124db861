"""The plugin's part of the terminal summary."""

import json
from collections import Counter
from dataclasses import replace
from datetime import date
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_gpuperf.report.terminal import PROPERTY, RANKS_KEYWORD, Summary, expected_lines, skip_lines, verdict_table
from pytest_gpuperf.verdicts.baselines import LaunchFigure, MetricBaseline
from pytest_gpuperf.verdicts.expected import Expected
from pytest_gpuperf.verdicts.judge import Outcome, Verdict
from pytest_gpuperf.verdicts.metric import Metric

KEY = "8x-nvidia-h200-nv18"
BASELINE = MetricBaseline("B/s", "higher", "", (LaunchFigure("a", 50, 350e9), LaunchFigure("b", 50, 362e9)))
SAME = Verdict(
    "t.py::test_a", "busbw", Metric(354e9, "B/s", "higher", limit=450e9), Outcome.SAME, KEY, BASELINE, -0.005, 0.05
)
UNJUDGED = Verdict("t.py::test_b", "time", Metric(27e-6, "s", "lower"), Outcome.UNJUDGED, KEY)


def outcomes(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines[1:-1]]


def test_no_verdict_is_no_table() -> None:
    assert verdict_table([]) == []


def test_a_row_says_everything_of_a_verdict() -> None:
    assert verdict_table([SAME, UNJUDGED]) == [
        "verdict   value       baseline    change  spread  of limit  metric",
        "same      354.0 GB/s  356.0 GB/s  -0.5 %  2.4 %   78.7 %    t.py::test_a busbw",
        "unjudged  27.00 us                                          t.py::test_b time",
        f"2 figures on {KEY}: 1 same, 1 unjudged",
    ]


def test_the_worst_stands_first() -> None:
    verdicts = [replace(SAME, outcome=outcome) for outcome in Outcome]
    assert outcomes(verdict_table(verdicts)) == [
        "invalid",
        "broken",
        "regressed",
        "missed",
        "missing",
        "stale",
        "suspect",
        "shifted",
        "undecided",
        "doubtful",
        "expected",
        "improved",
        "same",
        "recorded",
        "unjudged",
    ]


def test_of_one_outcome_the_largest_loss_stands_first() -> None:
    losses = [replace(SAME, outcome=Outcome.REGRESSED, change=change) for change in (-0.1, -0.3, -0.2)]
    table = verdict_table([SAME, *losses])
    assert [line.split("  ")[3].strip() for line in table[1:4]] == ["-30.0 %", "-20.0 %", "-10.0 %"]


def test_figures_are_counted_worst_first_and_by_machine() -> None:
    verdicts = [SAME, SAME, replace(SAME, outcome=Outcome.REGRESSED), replace(SAME, hardware_key="cpu")]
    assert verdict_table(verdicts)[-1] == f"4 figures on {KEY}, cpu: 1 regressed, 3 same"


def test_expectations_are_told_where_they_hold_and_where_nothing_needs_them() -> None:
    known = replace(SAME, expected=Expected("a slow driver", date(2027, 1, 31)))
    idle = 'no longer regressed: t.py::test_a busbw: delete its entry under "expected" in the baselines'
    told = {
        Outcome.EXPECTED: ["expected until 2027-01-31: t.py::test_a busbw: a slow driver"],
        Outcome.SAME: [idle],
        Outcome.IMPROVED: [idle],
    }
    for outcome in Outcome:
        assert expected_lines([UNJUDGED, replace(known, outcome=outcome)]) == told.get(outcome, [])


def test_tests_that_ran_nowhere_are_listed_by_reason() -> None:
    skips = Counter({("no GPUs", "t.py::test_b"): 3, ("no GPUs", "t.py::test_a"): 1, ("needs 8", "t.py::test_a"): 1})
    assert skip_lines(skips) == [
        "1 tests ran nowhere: needs 8",
        "  t.py::test_a",
        "4 tests ran nowhere: no GPUs",
        "  t.py::test_a",
        "  t.py::test_b (3)",
    ]
    assert skip_lines(Counter()) == []


class Terminal:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def section(self, title: str) -> None:
        self.lines.append(f"== {title}")

    def write_line(self, line: str) -> None:
        self.lines.append(line)


class Run:
    def __init__(self, *lines: str) -> None:
        self._lines = lines

    def closing_lines(self) -> list[str]:
        return list(self._lines)


def report(when: str = "call", **attributes: Any) -> pytest.TestReport:
    defaults: dict[str, Any] = {
        "when": when,
        "nodeid": "t.py::test_a[2ranks]",
        "user_properties": [],
        "skipped": False,
        "failed": False,
        "keywords": {RANKS_KEYWORD: 1},
        "longrepr": None,
    }
    return cast(pytest.TestReport, SimpleNamespace(**{**defaults, **attributes}))


def printed(run: Run, *reports: pytest.TestReport) -> list[str]:
    summary, terminal = Summary(run), Terminal()
    for item in reports:
        summary.pytest_runtest_logreport(item)
    summary.pytest_terminal_summary(cast(Any, terminal))
    return terminal.lines


def test_a_run_without_tests_on_ranks_prints_nothing() -> None:
    assert printed(Run(), report(keywords={})) == []


def test_verdicts_come_from_the_reports_of_calls() -> None:
    properties = [(PROPERTY, json.dumps([UNJUDGED.to_json()])), ("other", "x")]
    lines = printed(Run(), *(report(when, user_properties=properties) for when in ("setup", "call", "teardown")))
    assert lines[0] == "== gpuperf"
    assert lines[-1] == f"1 figures on {KEY}: 1 unjudged"


SKIPPED: dict[str, Any] = {"skipped": True, "longrepr": ("t.py", 3, "Skipped: no GPUs")}


def test_skips_come_from_the_reports_of_tests_on_ranks() -> None:
    lines = printed(
        Run(),
        report("setup", **SKIPPED),
        report("setup", **SKIPPED, nodeid="t.py::test_a[4ranks]"),
        report("setup", **SKIPPED, keywords={"ranks": 1}),  # the name of a folder
    )
    assert lines == ["== gpuperf", "2 tests ran nowhere: no GPUs", "  t.py::test_a (2)"]


@pytest.mark.parametrize("ran", [{"when": "call"}, {"when": "call", "failed": True}, {"when": "setup", "failed": True}])
@pytest.mark.parametrize("first", [True, False])
def test_a_test_of_which_one_variant_ran_is_no_test_that_ran_nowhere(ran: dict[str, Any], first: bool) -> None:
    reports = [report(**ran, nodeid="t.py::test_a[4ranks]"), report("setup", **SKIPPED)]
    assert printed(Run(), *(reports if first else reversed(reports))) == []


def test_a_setup_alone_is_no_run() -> None:
    assert printed(Run(), report("setup"), report(**SKIPPED), report("teardown"))[1] == "1 tests ran nowhere: no GPUs"


def test_an_expected_failure_is_no_skip() -> None:
    assert printed(Run(), report(skipped=True, longrepr="xfail")) == []


def test_what_the_run_has_to_say_comes_last() -> None:
    assert printed(Run("no baselines written")) == ["== gpuperf", "no baselines written"]
