"""The trial of the rule on real GPUs: what counts as an alarm, and that a slowed test is slower."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from benchmarks import judge_trial
from benchmarks.judge_trial import Plan, TrialError, controls, drawn, main, take
from benchmarks.trial import slowing
from benchmarks.trial.runs import Figure, Run, holds, summary, table
from benchmarks.trial.slowing import slowed
from pytest_gpuperf import Resettable
from pytest_gpuperf.baselines.schema import Baselines, LaunchFigure, LaunchInfo, MetricBaseline, TestBaseline
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.report import results_file
from pytest_gpuperf.report.results_file import Results
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.baselines.examples import launch
from tests.whole_run import run_pytest, write

KEY = "2x-nvidia-h200-nv18"
PLAN = Plan(("suites",), gpus=2, slower=0.05, seed=1)


def verdict(
    test: str, outcome: Outcome = Outcome.SAME, *, change: float | None = 0.0, seconds: float = 1e-3, unit: str = "s"
) -> Verdict:
    return Verdict(test, "time", Metric(seconds, unit, "lower"), outcome, KEY, change=change)


def made(*verdicts: Verdict, slowed: str | None = None, gpus: str = "these") -> Run:
    control = {"sustained matmul on 2 ranks": 1.6e-3}
    return Run("2026-01-01T00:00:00Z", gpus, control, 61.4, slowed, tuple(map(Figure.of, verdicts)))


SAME = made(verdict("a"), verdict("b", Outcome.IMPROVED, change=0.06))
ALARM = made(verdict("a", Outcome.REGRESSED), verdict("b"))
FOUND = made(verdict("a", Outcome.REGRESSED, change=-0.052), verdict("b"), slowed="a")
NOT_FOUND = made(verdict("a", change=-0.049), verdict("b"), slowed="a")
ANOTHER = made(verdict("a"), verdict("b", Outcome.REGRESSED), slowed="a")


def test_a_run_is_kept_with_all_its_figures() -> None:
    run = made(
        verdict("long", Outcome.REGRESSED, change=-0.07),
        verdict("short", seconds=99e-6),
        verdict("rate", unit="B/s"),
        verdict("shown", Outcome.UNJUDGED, change=None),
    )
    assert run.slowable == ["long"]
    assert [figure.change for figure in run.figures] == [-0.07, 0.0, 0.0, None]
    assert Run.from_json(json.loads(json.dumps(run.to_json()))) == run


@pytest.mark.parametrize("outcome", Outcome)
def test_what_fails_a_run_is_an_alarm(outcome: Outcome) -> None:
    fails = outcome in {Outcome.REGRESSED, Outcome.SHIFTED, Outcome.INVALID, Outcome.BROKEN, Outcome.MISSED}
    assert bool(made(verdict("a", outcome)).false_alarms) is fails
    of_the_slowdown = outcome in {Outcome.REGRESSED, Outcome.SHIFTED}
    assert bool(made(verdict("a", outcome), slowed="a").false_alarms) is (fails and not of_the_slowdown)
    assert made(verdict("a", outcome), slowed="a").found is (outcome is Outcome.REGRESSED)
    assert not made(verdict("a", outcome), slowed="b").found


def test_what_the_machine_explains_is_no_alarm_and_not_found() -> None:
    loss = verdict("a", Outcome.REGRESSED, change=-0.05)
    machine = made(loss.shifted(0.04, of_the_gpus=True), slowed="a")
    assert not machine.false_alarms
    assert not machine.found
    assert made(loss.shifted(0.04)).false_alarms
    assert made(loss.shifted()).false_alarms
    other = made(loss.shifted(0.04), slowed="a")  # not found, and no alarm about another test
    assert not other.false_alarms
    assert not other.found


def test_the_control_workload_of_a_run_is_the_median_of_its_launches() -> None:
    launches = [
        replace(launch(), control={"matmul": seconds, "all_reduce": 2 * seconds}) for seconds in (1.0, 5.0, 2.0)
    ]
    assert controls(launches) == {"matmul": 2.0, "all_reduce": 4.0}
    assert controls([launch(), launches[1]]) == {"matmul": 5.0, "all_reduce": 10.0}


def test_the_table_has_a_line_for_each_run_and_for_each_false_alarm() -> None:
    assert table([SAME, FOUND, ANOTHER]) == [
        "  1  2026-01-01T00:00:00Z    61 s  unchanged  (1 improved, 1 same)",
        "  2  2026-01-01T00:00:00Z    61 s  slowed a: found, -5.2%  (1 regressed, 1 same)",
        "  3  2026-01-01T00:00:00Z    61 s  slowed a: NOT FOUND, +0.0%  (1 regressed, 1 same)",
        "     FALSE ALARM: b time: regressed",
    ]


def test_the_summary_counts_both_kinds() -> None:
    assert summary([SAME, FOUND, ALARM, NOT_FOUND, SAME, ANOTHER]) == [
        "unchanged: 1 of 3 runs raised an alarm; all runs were on 1 set of GPUs",
        "slowed: found in 1 of 3 runs; 1 raised an alarm about another test",
    ]
    assert summary([SAME, made(verdict("a"), gpus="those")]) == [
        "unchanged: 0 of 2 runs raised an alarm; all runs were on 2 sets of GPUs"
    ]


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


def test_a_test_is_slowed_again_when_all_others_were() -> None:
    slowed_b = replace(FOUND, slowed="b")
    assert {drawn([SAME, FOUND, SAME], seed) for seed in range(20)} == {"b"}
    assert {drawn([SAME, FOUND, SAME, slowed_b, SAME], seed) for seed in range(20)} == {"a", "b"}


def test_a_trial_needs_a_test_that_can_be_slowed() -> None:
    with pytest.raises(TrialError, match="no test has a time of 100 us or more, which could be slowed"):
        drawn([made(verdict("a", unit="B/s"))], seed=1)


def scripted(monkeypatch: pytest.MonkeyPatch, *runs: Run | BaseException) -> list[str | None]:
    """Lets the trial's runs come to these; which test each slows is appended to the list."""
    coming, asked = list(runs), []

    def run(plan: Plan, slowed: str | None) -> Run:
        asked.append(slowed)
        found = coming.pop(0)
        if isinstance(found, BaseException):
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


def test_a_trial_that_is_interrupted_says_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trial.json"
    scripted(monkeypatch, SAME, FOUND, KeyboardInterrupt())
    assert main(["--gpus=2", "--runs=2", f"--json={file}"]) == 130
    last = capsys.readouterr().out.splitlines()[-3:]
    assert last == [*summary([SAME, FOUND]), "interrupted after 2 of 4 runs"]
    assert len(json.loads(file.read_text())["runs"]) == 2


@pytest.mark.parametrize("text", ["", "[]", '{"runs": [{}], "plan": {}}', '{"runs": []}'])
def test_a_file_that_is_no_trials_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (tmp_path / "trial.json").write_text(text)
    assert main(["--gpus=2", f"--json={tmp_path / 'trial.json'}"]) == 2
    assert "trial.json is no file of a trial" in capsys.readouterr().err


@pytest.mark.parametrize("other", ["--gpus=4", "--slower=0.1", "--seed=2", "suites/nvlink"])
def test_a_file_of_another_trial_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], other: str
) -> None:
    command = ["--gpus=2", "--runs=1", f"--json={tmp_path / 'trial.json'}"]
    scripted(monkeypatch, SAME, FOUND)
    assert main(command) == 0
    assert main([*command, other]) == 2
    assert "trial.json holds a trial of {'suites': ['suites'], 'gpus': 2, " in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = scripted(monkeypatch)
    assert main(["--gpus=2", f"--json={tmp_path / 'none' / 'trial.json'}"]) == 2
    assert "cannot be written: there is no folder" in capsys.readouterr().err
    assert asked == []


def test_runs_of_other_tests_are_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, made(verdict("a")))
    with pytest.raises(TrialError, match=r"have not the same figures: \[\('b', 'time'\)\]$"):
        take(PLAN, [SAME])


def test_a_trial_has_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--gpus=2", "--runs=0"])
    assert "--runs must be 1 or more, got 0" in capsys.readouterr().err


def running(
    *verdicts: Verdict, returncode: int = 0, file: bool = True, launches: Mapping[str, LaunchInfo] | None = None
) -> Callable[..., Any]:
    used = launches or {}
    figures = tuple(LaunchFigure(id_, 10, 1e-3) for id_ in used)
    tests = {"a": TestBaseline("", {"time": MetricBaseline("s", "lower", "", figures)})} if used else {}
    candidate = Baselines(KEY, {}, used, tests)

    def run(command: list[str], **kwargs: Any) -> subprocess.CompletedProcess[str]:
        path = Path(next(word for word in command if word.startswith("--gpuperf-json=")).partition("=")[2])
        if file:
            results_file.write(path, Results(candidate, verdicts))
        return subprocess.CompletedProcess(command, returncode, stdout="what pytest said")

    return run


@pytest.mark.parametrize(
    ("done", "message"),
    [
        (running(file=False), "there is no such file"),
        (running(), "nothing was judged"),
        (running(verdict("a", Outcome.REGRESSED), returncode=2), "^pytest ended with exit status 2"),
        (running(verdict("a", Outcome.MISSING, change=None), returncode=1), "of 1 figures 1 missing: record baselines"),
        (
            running(verdict("a", Outcome.STALE, change=None), returncode=1),
            "of 1 figures 1 stale: record",
        ),
        (running(verdict("a", Outcome.SUSPECT)), "of 1 figures 1 suspect"),
        (
            running(verdict("a", Outcome.REGRESSED)),
            "1 figures should fail the run, .* exit status 0",
        ),
        (running(verdict("a"), returncode=1), "0 figures should fail the run, and pytest ended with exit status 1"),
    ],
    ids=["no results", "nothing judged", "interrupted", "missing", "stale", "suspect", "passed", "failed otherwise"],
)
def test_a_run_that_tells_nothing_is_no_run(
    monkeypatch: pytest.MonkeyPatch, done: Callable[..., Any], message: str
) -> None:
    monkeypatch.setattr("benchmarks.judge_trial.subprocess.run", done)
    with pytest.raises(TrialError, match=message) as caught:
        judge_trial.run(PLAN, None)
    assert str(caught.value).endswith("what pytest said")


def test_a_run_tells_its_gpus_and_their_control_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = {
        str(seconds): replace(launch(), gpus="these", control={"matmul": seconds}) for seconds in (1.0, 5.0, 2.0)
    }
    monkeypatch.setattr("benchmarks.judge_trial.subprocess.run", running(verdict("a"), launches=launches))
    taken = judge_trial.run(PLAN, None)
    assert (taken.gpus, taken.control) == ("these", {"matmul": 2.0})


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
    seconds = {found.test[-7:-1]: found.metric.value for found in results_file.load(folder / "results.json").verdicts}
    # A sleep is never too short, and half a millisecond is told from five on the busiest machine.
    assert seconds["slowed"] >= 4e-3
    assert seconds["steady"] < 4e-3


CALLS = """
import time
import pytest
from benchmarks.trial.slowing import CALLS, WINDOW, calls_of, slowed

def calls_of_a_sleep(ctx, seconds):
    return calls_of(lambda: time.sleep(seconds[ctx.rank]), ctx.device)

@pytest.mark.ranks(2)
@pytest.mark.parametrize(("seconds", "least", "most"), [
    ((0.0, 0.0), CALLS, CALLS), ((1e-4, 0.012), 2, 5), ((WINDOW, WINDOW), 2, 2),
])
def test_all_ranks_call_a_step_as_often(ranks, seconds, least, most):
    one, other = ranks.run(calls_of_a_sleep, seconds)
    assert least <= one == other <= most

def calls_to_slow(ctx):
    calls = []
    slowed(lambda ctx: lambda: calls.append(time.sleep(WINDOW / 2)), 0.05)(ctx)
    return len(calls)

@pytest.mark.ranks(2)
def test_slowing_calls_it_no_more_often(ranks):
    assert ranks.run(calls_to_slow)[0] < 10 * CALLS
"""


def test_a_long_step_is_called_less_often(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(CALLS)
    pytester.runpytest("--gpus=0").assert_outcomes(passed=4)


def test_a_step_whose_time_drifts_is_slowed_by_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    drift = iter([1.0, 1.0, 1.4, 1.4, 1.1, 1.1, 0.8, 0.8, 1.2, 1.2, 0.9, 0.9, 1.3, 1.3])
    monkeypatch.setattr(slowing, "seconds_of", lambda step, device, calls: step() * next(drift))
    # Each round is short of 5 % of its own time, 1.1 seconds in the middle.
    assert slowing.lacking(lambda: 1.0, lambda: 1.0, 0.05, torch.device("cpu"), 1) == pytest.approx(0.055)


def test_each_trial_corrects_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    lacking = iter([0.05, 0.02, -0.03])
    monkeypatch.setattr(slowing, "waiting", lambda device: waited.append)
    monkeypatch.setattr(slowing, "calls_of", lambda step, device: 2)

    def tried(step: Any, slow_step: Any, *_: object) -> float:
        slow_step()
        return next(lacking)

    monkeypatch.setattr(slowing, "lacking", tried)
    slowed(lambda ctx: lambda: None, 0.05)(cast(Any, SimpleNamespace(device=None)))()
    assert waited == pytest.approx([0.0, 0.05, 0.07, 0.04])


def test_a_test_that_is_not_there_cannot_be_slowed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    done = pytester.runpytest("-p", "benchmarks.trial.slowing", "--slow-test=x")
    done.stderr.fnmatch_lines(["*--slow-test x: no program of such a test was measured, so nothing was slowed*"])
    assert done.ret == pytest.ExitCode.USAGE_ERROR


def test_a_step_that_is_reset_cannot_be_slowed() -> None:
    program = slowed(lambda ctx: Resettable(int, int), 0.05)
    with pytest.raises(TypeError, match="a step that is reset between samples cannot be slowed: slow another test"):
        program(None)


def test_nothing_is_slowed_by_nothing(pytester: pytest.Pytester) -> None:
    done = pytester.runpytest("-p", "benchmarks.trial.slowing", "--slow-test=x", "--slow-by=0")
    done.stderr.fnmatch_lines(["*--slow-by must be above 0, got 0*"])
