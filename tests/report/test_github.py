"""What a workflow on GitHub is told."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_gpuperf.features.github.workflow import MESSAGE_LIMIT, SUMMARY_LIMIT, GitHub, format_annotation
from pytest_gpuperf.report.annotation import Annotation
from pytest_gpuperf.report.findings import Findings
from pytest_gpuperf.report.properties import make_verdict_properties
from pytest_gpuperf.report.terminal import Reported
from pytest_gpuperf.verdicts.outcome import Outcome
from tests.report.examples import COMMANDS, SAME, UNJUDGED, report
from tests.report.test_terminal import Run, Terminal

REGRESSED = replace(SAME, outcome=Outcome.REGRESSED, change=-0.163, test="t.py::test_a[x]")
MISSING = replace(UNJUDGED, outcome=Outcome.MISSING)


def printed(rootpath: Path, **environ: str) -> list[str]:
    findings = Findings()
    crash = SimpleNamespace(reprcrash=SimpleNamespace(message="ValueError: 50%\nraised on rank 1"))
    for item in (
        report(nodeid="t.py::test_f", outcome="failed", longrepr=crash, location=("sub/t.py", 9, "test_f")),
        report("teardown", nodeid="t.py::test_g", outcome="failed", longrepr="left", location=("t.py", None, "")),
        report(outcome="failed", user_properties=make_verdict_properties([SAME, MISSING, REGRESSED])),
    ):
        findings.pytest_runtest_logreport(item)
    terminal = Terminal()
    GitHub(Reported(Run(), findings, COMMANDS, rootpath), environ=environ).pytest_terminal_summary(cast(Any, terminal))
    return terminal.lines


def test_annotations_stand_worst_first_at_their_tests() -> None:
    assert printed(Path("/src/repo"), GITHUB_ACTIONS="true") == [
        "::error file=t.py,line=4,title=regressed%3A t.py%3A%3Atest_a[x] busbw"
        "::busbw 354.0 GB/s: 16.3 %25 slower than 356.0 GB/s, by the baseline alone%0A"
        "spread 2.4 %25 over 2 launches; a loss of 5.0 %25 is seen",
        "::error file=t.py,line=4,title=missing%3A t.py%3A%3Atest_b time"
        "::time 27.00 us: no baseline on 8x-nvidia-h200-nv18%0A"
        'record one with: pytest "t.py::test_b" --gpus 8 --update-baselines --reason "why"',
        "::error file=sub/t.py,line=10,title=failed%3A t.py%3A%3Atest_f::ValueError: 50%25%0Araised on rank 1",
        "::error file=t.py,title=failed in its teardown%3A t.py%3A%3Atest_g::left",
    ]


@pytest.mark.parametrize(
    ("workspace", "file"),
    [("/src", "repo/t.py"), ("/src/repo", "t.py"), ("/elsewhere", "t.py"), ("", "t.py")],
)
def test_files_are_named_as_the_repository_does(workspace: str, file: str) -> None:
    lines = printed(Path("/src/repo"), GITHUB_ACTIONS="true", GITHUB_WORKSPACE=workspace)
    assert lines[0].startswith(f"::error file={file},line=4,")


def test_remarks_of_features_are_warnings_after_the_failures(tmp_path: Path) -> None:
    terminal = Terminal()
    remark = Annotation(tmp_path / "sub/train.py", 7, "2 of 5 faults\nunnoticed", "stale")
    reported = Reported(Run(), Findings(), COMMANDS, tmp_path)
    github = GitHub(reported, lambda: [remark], {"GITHUB_ACTIONS": "true"})
    github.pytest_terminal_summary(cast(Any, terminal))
    assert terminal.lines == ["::warning file=sub/train.py,line=7,title=2 of 5 faults unnoticed::stale"]


@pytest.mark.parametrize("environ", [{}, {"GITHUB_ACTIONS": "false"}])
def test_elsewhere_nothing_is_annotated(environ: dict[str, str]) -> None:
    assert printed(Path("/src"), **environ) == []


def test_an_annotation_is_escaped_by_githubs_rules() -> None:
    assert format_annotation("a,b:c%\n.py", 1, "x,y:z", "100%\r\n: , ::") == (
        "::error file=a%2Cb%3Ac%25%0A.py,line=1,title=x%2Cy%3Az::100%25%0D%0A: , ::"
    )


def test_a_title_is_one_line() -> None:
    findings = Findings()
    hostile = replace(MISSING, metric_name="a\n::error::b\x1b[31m ##[error]c")
    findings.pytest_runtest_logreport(report(outcome="failed", user_properties=make_verdict_properties([hostile])))
    terminal = Terminal()
    github = GitHub(Reported(Run(), findings, COMMANDS, Path("/src")), environ={"GITHUB_ACTIONS": "true"})
    github.pytest_terminal_summary(cast(Any, terminal))
    (line,) = terminal.lines
    assert line.startswith(
        "::error file=t.py,line=4,title=missing%3A t.py%3A%3Atest_b a %3A%3Aerror%3A%3Ab [31m ## [error]c::"
        "a ::error::b [31m ## [error]c 27.00 us"
    )


def test_an_endless_message_ends() -> None:
    assert format_annotation("f", 1, "t", "x" * 10_000).endswith("::" + "x" * MESSAGE_LIMIT + "...")


def test_the_summary_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    assert printed(tmp_path, GITHUB_STEP_SUMMARY=str(path)) == []
    text = path.read_text()
    assert text.startswith("before\n### gpuperf\n\n3 tests on ranks: 3 failed, 0 passed, 0 skipped\n")


def test_what_is_there_counts_for_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("x" * (SUMMARY_LIMIT - 300))
    printed(tmp_path, GITHUB_STEP_SUMMARY=str(path))
    assert path.stat().st_size <= SUMMARY_LIMIT
    assert path.read_text().endswith(" more lines are left out: GitHub takes 1 MiB for each step.\n")


def test_a_summary_that_cannot_be_written_is_told_and_breaks_nothing(tmp_path: Path) -> None:
    assert printed(tmp_path, GITHUB_STEP_SUMMARY=str(tmp_path)) == [
        f"gpuperf: the job summary could not be appended to GITHUB_STEP_SUMMARY={str(tmp_path)!r}: Is a directory; "
        "expected a file that can be written: let GitHub set the variable, or unset it"
    ]
