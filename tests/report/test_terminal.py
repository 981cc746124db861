"""The plugin's part of the terminal summary."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_gpuperf.report.findings import Findings
from pytest_gpuperf.report.properties import make_verdict_properties
from pytest_gpuperf.report.terminal import Summary
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.report.examples import COMMANDS, KEY, SAME, SKIPPED, UNJUDGED, report

LONG = replace(SAME, test=f"t.py::test_{'a' * 200}")


class Terminal:
    def __init__(self, *, isatty: bool = False) -> None:
        self.isatty = isatty
        self.lines: list[str] = []
        self.colours: list[dict[str, bool]] = []

    def write_sep(self, sep: str, title: str) -> None:
        self.lines.append(f"{sep * 2} {title}")

    def write_line(self, line: str, **markup: bool) -> None:
        self.lines.append(line)
        self.colours.append(markup)


class Run:
    def __init__(self, *lines: str) -> None:
        self._lines = lines

    def __call__(self, _: Sequence[Verdict]) -> list[str]:
        return list(self._lines)


def judged(*verdicts: Verdict) -> pytest.TestReport:
    return report(user_properties=make_verdict_properties(verdicts))


def terminal_after(
    run: Run, *reports: pytest.TestReport, isatty: bool = False, verbosity: int = 0, others_fail: bool = False
) -> Terminal:
    findings, terminal = Findings(), Terminal(isatty=isatty)
    for item in reports:
        findings.pytest_runtest_logreport(item)
    writer = SimpleNamespace(fullwidth=100)
    config = SimpleNamespace(get_terminal_writer=lambda: writer, get_verbosity=lambda: verbosity)
    wrapper = Summary(run, findings, COMMANDS).pytest_terminal_summary(cast(Any, terminal), cast(Any, config))
    next(wrapper)
    assert terminal.lines == []
    with contextlib.suppress(StopIteration, ZeroDivisionError):
        wrapper.throw(ZeroDivisionError()) if others_fail else next(wrapper)
    return terminal


def test_a_run_without_tests_on_ranks_prints_nothing() -> None:
    assert terminal_after(Run(), report(keywords={})).lines == []


def test_what_others_say_comes_before_even_if_it_is_an_exception() -> None:
    assert terminal_after(Run("written"), others_fail=True).lines == ["== gpuperf", "written"]


def test_verdicts_and_skips_and_what_the_run_has_to_say() -> None:
    lines = terminal_after(Run("no baselines written"), judged(UNJUDGED), report("setup", **SKIPPED, nodeid="b")).lines
    assert lines[0] == "== gpuperf"
    assert lines[1:] == [
        "not judged:",
        "  t.py::test_b: time 27.00 us",
        f"1 metric on {KEY}: 1 unjudged",
        "1 test did not run: no GPUs",
        "  b",
        "no baselines written",
    ]


@pytest.mark.parametrize(
    ("verbosity", "row"),
    [(-1, "  same     -0.5 % GB/s  354.0 GB/s"), (0, "  same     -0.5 % GB/s"), (1, "same      354.0")],
)
def test_a_line_a_test_unless_the_user_wants_to_see_each_figure(verbosity: int, row: str) -> None:
    lines = terminal_after(Run(), judged(SAME, UNJUDGED), verbosity=verbosity).lines
    assert len([line for line in lines if line.startswith(row)]) == 1


def test_a_smoke_run_reports_no_figures() -> None:
    findings, terminal = Findings(), Terminal()
    findings.pytest_runtest_logreport(judged(UNJUDGED))
    config = SimpleNamespace(get_terminal_writer=lambda: SimpleNamespace(fullwidth=80), get_verbosity=lambda: 0)
    wrapper = Summary(Run(), findings, COMMANDS, smoke=True).pytest_terminal_summary(
        cast(Any, terminal), cast(Any, config)
    )
    next(wrapper)
    with contextlib.suppress(StopIteration):
        next(wrapper)
    assert terminal.lines == ["== gpuperf", "1 perf test ran and handed over 1 metric; --smoke judges none"]


def test_only_a_terminal_has_a_width() -> None:
    row = terminal_after(Run(), judged(LONG), isatty=True, verbosity=1).lines[2]
    assert len(row) == 100
    assert LONG.test in terminal_after(Run(), judged(LONG), verbosity=1).lines[2]


def test_colours_are_pytests_own() -> None:
    bad = replace(SAME, outcome=Outcome.REGRESSED)
    assert terminal_after(Run(), judged(bad, SAME), verbosity=1).colours == [{}, {"red": True}, {}, {}]


def test_figures_that_are_the_hosts_are_named() -> None:
    late = replace(SAME, metric=replace(SAME.metric, host_bound=True))
    assert f"  {SAME.test} busbw" in terminal_after(Run(), judged(late)).lines
    assert f"  {SAME.test} busbw" not in terminal_after(Run(), judged(SAME)).lines
