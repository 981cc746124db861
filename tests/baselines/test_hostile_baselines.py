"""Texts of a baselines file that would be lines, colours or commands of their own: reports say them on one line."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.__main__ import main
from pytest_gpuperf.baselines.provenance import read_commit
from tests.fake_gpus import without_ranks
from tests.options.test_option_resume import TESTS, interrupt
from tests.options.test_option_update_baselines import KEY, NODE, baselines, figures_of, measure, project, record, run
from tests.scripted_arms import repeat

__all__ = ["project"]

pytestmark = pytest.mark.usefixtures("eight_gpus")

HOSTILE = "a | <b>\r\n::error::injected\x1b[31m ##[error]injected\u2028\u202e"
TAME = "a | <b> ::error::injected [31m ## [error]injected "


@pytest.fixture(autouse=True)
def _no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    without_ranks(monkeypatch)


@pytest.fixture
def recorded(project: pytest.Pytester) -> pytest.Pytester:
    record(project)
    return project


def rewrite(project: pytest.Pytester, change: Callable[[Any], object]) -> None:
    """What somebody makes of the file by hand."""
    data = json.loads(baselines(project).read_text())
    change(data)
    baselines(project).write_text(json.dumps(data))


def tame(text: str) -> str:
    """The text, once nothing in it is what was injected."""
    assert not re.search(r"^\s*::error::injected", text, re.MULTILINE)
    assert not re.search(r"##\[|\x1b|\u2028|\u202e", text)
    return text


def run_tame(project: pytest.Pytester, *options: str) -> str:
    result = run(project, "--color=no", "-rA", *options)
    return tame(result.stdout.str() + result.stderr.str())


def expected(**more: object) -> Callable[[Any], object]:
    entry = {"status": "regressed", "reason": HOSTILE, "until": "2999-12-31", **more}
    return lambda data: data["tests"][NODE].update(expected={"busbw": entry})


def test_the_reason_of_an_expected_regression(recorded: pytest.Pytester) -> None:
    rewrite(recorded, expected())
    measure(recorded, 250e9)
    text = run_tame(recorded)
    assert f"\nexpected until 2999-12-31: {NODE} busbw: {TAME}\n" in text


def test_the_reason_of_what_is_worse_than_expected(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    repeat(monkeypatch, lambda: figures_of(recorded))
    rewrite(recorded, expected(center=280e9))
    measure(recorded, 200e9)
    lines = run_tame(recorded).splitlines()
    told = [line for line in lines if f"until 2999-12-31: {TAME}" in line]
    assert any(line.startswith("  it was expected ") for line in told)  # the failure
    (annotation,) = (line for line in lines if line.lstrip().startswith("::"))
    assert annotation.startswith("::error file=test_it.py,")
    assert annotation in told
    tame((tmp_path / "summary.md").read_text())


def test_a_metrics_name_and_unit(recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def change(data: Any) -> None:
        metrics = data["tests"][NODE]["metrics"]
        metrics[HOSTILE] = metrics["busbw"]
        metrics["busbw"] = {**metrics["busbw"], "unit": HOSTILE}

    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    rewrite(recorded, change)
    text = run_tame(recorded, "-v")
    assert f"\n1 metric with a baseline was not checked: {NODE} {TAME}\n" in text
    assert f" {TAME}  " in text  # the unit in the table
    summary = tame((tmp_path / "summary.md").read_text())
    rows = [line for line in summary.splitlines() if line.startswith("| missing |")]
    assert [line.count("|") for line in rows] == [8]


def test_the_launch_of_an_anchor(recorded: pytest.Pytester) -> None:
    def change(data: Any) -> None:
        metric = data["tests"][NODE]["metrics"]["busbw"]
        metric["anchor"].update(commit=HOSTILE, center=400e9)

    rewrite(recorded, change)
    measure(recorded, 297e9)
    assert f"commit {TAME}: " in run_tame(recorded, "--update-baselines", "--reason=x")


def test_a_test_of_a_journal(recorded: pytest.Pytester) -> None:
    plan = {"hardware_key": KEY, "commit": read_commit(recorded.path), "launches": 5, "tests": {HOSTILE: "body"}}
    baselines(recorded).with_name(f".{KEY}.journal").write_text(json.dumps({"plan": plan}) + "\n")
    text = run_tame(recorded, "--update-baselines", "--reason=x", "--resume")
    assert f"this recording is without {TAME}: select the same tests" in text


def test_the_software_of_a_journal(recorded: pytest.Pytester) -> None:
    recorded.makepyfile(test_it=TESTS)
    interrupt(recorded)
    journal = baselines(recorded).with_name(f".{KEY}.journal")
    plan, *entries = map(json.loads, journal.read_text().splitlines())
    for entry in entries:
        entry["info"]["environment"][HOSTILE] = "1"
    journal.write_text("".join(json.dumps(line) + "\n" for line in (plan, *entries)))
    text = run_tame(recorded, "--update-baselines", "--reason=x", "--resume")
    assert f"its launches ran with {TAME} '1', now it is None: install that version" in text


def test_what_is_adopted(recorded: pytest.Pytester, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(baselines(recorded).read_text())
    data["tests"] = {HOSTILE: data["tests"][NODE]}
    results = recorded.path / "results.json"
    written = {"results": 1, "hardware_key": data["hardware_key"], "environment": {}, "verdicts": []}
    results.write_text(json.dumps({**written, "candidate": data}))
    capsys.readouterr()
    assert main(["adopt", str(results), "--reason=x", "--mode=append", "--baselines=elsewhere"]) == 1
    assert f"not written: {TAME}: it has no entry" in tame(capsys.readouterr().out)
    metric = data["tests"][HOSTILE]["metrics"]["busbw"]
    metric["anchor"].update(commit=HOSTILE, center=400e9)
    (recorded.path / "elsewhere" / baselines(recorded).name).write_text(json.dumps(data))
    assert main(["adopt", str(results), "--reason=x", "--mode=all", "--baselines=elsewhere"]) == 1
    assert f"not written: {TAME} busbw drifted from its anchor" in tame(capsys.readouterr().out)
    metric["launches"] = []
    results.write_text(json.dumps({**written, "candidate": data}))
    assert main(["adopt", str(results), "--reason=x"]) == 1
    tame(capsys.readouterr().err)
