"""The trial of the rule on real GPUs: what counts as an alarm, and that a slowed test is slower."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import judge_trial
from benchmarks.judge_trial import TrialError, drawn, main
from benchmarks.trial.runs import Run, holds, summary, table
from pytest_gpuperf.verdicts import results
from pytest_gpuperf.verdicts.baselines import Baselines
from pytest_gpuperf.verdicts.judge import Outcome, Verdict
from pytest_gpuperf.verdicts.metric import Metric
from pytest_gpuperf.verdicts.results import Results
from tests.whole_run import run_pytest, write

KEY = "2x-nvidia-h200-nv18"


def verdict(
    test: str, outcome: Outcome = Outcome.SAME, *, change: float | None = 0.0, seconds: float = 1e-3, unit: str = "s"
) -> Verdict:
    return Verdict(test, "time", Metric(seconds, unit, "lower"), outcome, KEY, change=change)


def made(*verdicts: Verdict, slowed: str | None = None, exit_status: int = 0) -> Run:
    return Run.of(
        verdicts, at="2026-01-01T00:00:00Z", host="here", seconds=61.4, exit_status=exit_status, slowed=slowed
    )


SAME = made(verdict("a"), verdict("b", Outcome.IMPROVED, change=0.06))
ALARM = made(verdict("a", Outcome.REGRESSED), verdict("b"))
FOUND = made(verdict("a", Outcome.REGRESSED, change=-0.052), verdict("b"), slowed="a", exit_status=1)
NOT_FOUND = made(verdict("a", change=-0.049), verdict("b"), slowed="a")
ANOTHER = made(verdict("a"), verdict("b", Outcome.REGRESSED), slowed="a", exit_status=1)


def test_a_run_is_what_its_verdicts_say() -> None:
    run = made(
        verdict("long", Outcome.REGRESSED, change=-0.07),
        verdict("short", seconds=99e-6),
        verdict("rate", unit="B/s", change=None),
    )
    assert run.outcomes == {"regressed": 1, "same": 2}
    assert run.alarms == ("long time",)
    assert run.slowable == ("long",)
    assert run.changes == {"long time": -0.07, "short time": 0.0}
    assert Run.from_json(json.loads(json.dumps(run.to_json()))) == run


@pytest.mark.parametrize(
    ("run", "false_alarms", "found"),
    [
        (SAME, (), False),
        (ALARM, ("a time",), False),
        (FOUND, (), True),
        (NOT_FOUND, (), False),
        (ANOTHER, ("b time",), False),
    ],
    ids=["same", "alarm", "found", "not found", "another"],
)
def test_an_alarm_about_any_other_test_is_false(run: Run, false_alarms: tuple[str, ...], found: bool) -> None:
    assert run.false_alarms == false_alarms
    assert run.found is found


def test_the_table_has_a_line_for_each_run_and_for_each_false_alarm() -> None:
    assert table([SAME, FOUND, ANOTHER]) == [
        "  1  2026-01-01T00:00:00Z    61 s  unchanged  (1 improved, 1 same)",
        "  2  2026-01-01T00:00:00Z    61 s  slowed a: found, -5.2%  (1 regressed, 1 same)",
        "  3  2026-01-01T00:00:00Z    61 s  slowed a: NOT FOUND, +0.0%  (1 regressed, 1 same)",
        "     FALSE ALARM: b time",
    ]


def test_the_summary_counts_both_kinds() -> None:
    assert summary([SAME, FOUND, ALARM, NOT_FOUND, SAME, ANOTHER]) == [
        "unchanged: 1 of 3 runs raised an alarm",
        "slowed: found in 1 of 3 runs; 1 raised an alarm about another test",
    ]
    assert summary([SAME]) == ["unchanged: 0 of 1 runs raised an alarm"]


def test_nine_of_ten_must_be_found_and_no_alarm_be_false() -> None:
    assert holds([SAME, FOUND])
    assert holds([SAME, FOUND] * 9 + [SAME, NOT_FOUND])
    assert not holds([SAME, FOUND] * 8 + [SAME, NOT_FOUND] * 2)
    assert not holds([SAME, FOUND, ALARM])
    assert not holds([SAME, FOUND] * 9 + [SAME, ANOTHER])


def test_every_other_run_slows_a_test_at_random() -> None:
    assert drawn([], seed=1) is None
    assert drawn([SAME, FOUND], seed=1) is None
    assert {drawn([SAME], seed) for seed in range(20)} == {"a", "b"}
    assert drawn([SAME], seed=3) == drawn([SAME], seed=3)


def scripted(monkeypatch: pytest.MonkeyPatch, *runs: Run | Exception) -> list[str | None]:
    """Lets the trial's runs come to these; which test each slows is appended to the list."""
    coming, asked = list(runs), []

    def run(suites: list[str], gpus: int, slowed: str | None, by: float) -> Run:
        asked.append(slowed)
        found = coming.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(judge_trial, "run", run)
    return asked


def test_a_trial_goes_on_where_its_file_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trial.json"
    command = ["--gpus=2", "--runs=2", f"--json={file}"]
    asked = scripted(monkeypatch, SAME, FOUND, TrialError("no ranks"))
    assert main(command) == 2
    assert capsys.readouterr().err == "error: no ranks\n"
    assert asked[0] is None
    assert asked[1] in ("a", "b")

    asked = scripted(monkeypatch, SAME, NOT_FOUND)
    assert main([*command, "--check"]) == 1
    assert asked[0] is None
    out = capsys.readouterr().out.splitlines()
    assert out == table([SAME, FOUND, SAME, NOT_FOUND]) + summary([SAME, FOUND, SAME, NOT_FOUND])
    scripted(monkeypatch)
    assert main(command) == 0


def test_a_trial_has_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--gpus=2", "--runs=0"])
    assert "--runs must be 1 or more, got 0" in capsys.readouterr().err


def running(*verdicts: Verdict, returncode: int = 0, file: bool = True) -> Callable[..., Any]:
    def run(command: list[str], **kwargs: Any) -> subprocess.CompletedProcess[str]:
        path = Path(next(word for word in command if word.startswith("--gpuperf-json=")).partition("=")[2])
        if file:
            results.write(path, Results(Baselines(KEY, {}), verdicts))
        return subprocess.CompletedProcess(command, returncode, stdout="what pytest said")

    return run


@pytest.mark.parametrize(
    ("done", "message"),
    [
        (running(file=False), "there is no such file"),
        (running(), "nothing was judged"),
        (
            running(verdict("a", Outcome.MISSING, change=None), returncode=1),
            "record baselines first: 1 figures have none",
        ),
        (running(verdict("a", Outcome.REGRESSED)), "figures regressed and the run passed"),
    ],
    ids=["no results", "nothing judged", "missing", "passed"],
)
def test_a_run_that_tells_nothing_is_no_run(
    monkeypatch: pytest.MonkeyPatch, done: Callable[..., Any], message: str
) -> None:
    monkeypatch.setattr("benchmarks.judge_trial.subprocess.run", done)
    with pytest.raises(TrialError, match=message) as caught:
        judge_trial.run(["suites"], 2, None, 0.05)
    assert str(caught.value).endswith("what pytest said")


CONFTEST = """
import pytest
from tests import fake_gpus
fake_gpus.install(pytest.MonkeyPatch(), visible=2)
"""

TESTS = """
import time
import pytest

pytestmark = [pytest.mark.perf, pytest.mark.ranks(2)]

def sleeping(ctx, seconds):
    return lambda: time.sleep(seconds)

@pytest.mark.parametrize("name", ["steady", "slowed"])
def test_it(perf, name):
    perf.check(time=perf.configured(samples=10, budget=0.05).measure(sleeping, seconds=5e-4).time)
"""


def test_the_plugin_slows_one_test_down(tmp_path: Path) -> None:
    folder = write(tmp_path, {"conftest.py": CONFTEST, "test_it.py": TESTS, "pytest.ini": "[pytest]\n"})
    slow = ("-p", "benchmarks.trial.slowing", "--slow-test=test_it.py::test_it[2ranks-slowed]", "--slow-by=9")
    run_pytest(folder, "--gpus=2", *slow, "--gpuperf-json=results.json")
    seconds = {found.test[-7:-1]: found.metric.value for found in results.load(folder / "results.json").verdicts}
    # A sleep is never too short, and half a millisecond is told from five on the busiest machine.
    assert seconds["slowed"] >= 4e-3
    assert seconds["steady"] < 4e-3


def test_nothing_is_slowed_by_nothing(pytester: pytest.Pytester) -> None:
    done = pytester.runpytest("-p", "benchmarks.trial.slowing", "--slow-test=x", "--slow-by=0")
    done.stderr.fnmatch_lines(["*--slow-by must be above 0, got 0*"])
