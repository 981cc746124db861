"""What becomes of a suspect on a machine whose control workload tells that it is slower."""

import json
from pathlib import Path

import pytest

from pytest_gpuperf.run.current_ranks import CurrentRanks
from tests.fake_gpus import without_ranks
from tests.run.test_judged_run import CONFTEST
from tests.scripted_figures import STEADY, TESTS, figures, judged
from tests.whole_run import run_pytest, write

pytestmark = pytest.mark.usefixtures("eight_gpus")

CONTROL = """
import json
from pathlib import Path
from pytest_gpuperf.run.current_ranks import CurrentRanks
from pytest_gpuperf.verdicts.controls import Control

CONTROL = Path(__file__).with_name("control.json")

def control(self, world_size):
    seconds = json.loads(CONTROL.read_text())
    CONTROL.write_text(json.dumps(seconds[1:] or seconds))
    return {f"matmul on {world_size} ranks": Control(seconds[0], CONTROL.with_name("control_at_limit").exists())}

CurrentRanks._control = control
"""


def controlled(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    *,
    now: list[float],
    at_limit: bool = True,
    tests: str = TESTS.partition("def test_c")[0],
) -> None:
    """Baselines of 10 launches, whose control workload took 1 ms; it will take that long now."""
    without_ranks(monkeypatch)
    monkeypatch.setattr(CurrentRanks, "_control", CurrentRanks._control)  # and undone after the test
    pytester.makeconftest(CONTROL)
    pytester.makepyfile(test_it=tests)
    if at_limit:
        for name in ("control_at_limit", "at_limit"):
            (pytester.path / name).touch()
    figures(pytester, a=STEADY * 2, b=STEADY * 2, control=[1e-3, 1.001e-3, 0.999e-3] * 4)
    options = ("--gpus=2", "--update-baselines", "--launches=10", "--reason=first")
    assert pytester.runpytest_inprocess(*options).ret == 0
    assert len(json.loads((pytester.path / "control.json").read_text())) == 2  # once a launch
    figures(pytester, control=now)


def test_a_loss_of_the_control_workload_too_is_the_machines(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    controlled(pytester, monkeypatch, now=[1.05e-3] * 9)
    figures(pytester, a=[94e9], b=[100e9])
    result = judged(pytester, "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [
            "the control workload, matmul on 2 ranks, is 5.0 % slower than in the launches of the baselines: *",
            "SKIPPED * shifted: *worse than the baseline *, and the control workload 5.0 % slower, which may be why: *",
        ]
    )
    assert len(json.loads((pytester.path / "control.json").read_text())) == 3  # one for each of 6 launches


@pytest.mark.parametrize("what", ["version", "setting"])
def test_a_loss_that_other_software_may_have_caused_fails_the_run(
    what: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    controlled(pytester, monkeypatch, now=[1.05e-3])
    if what == "version":
        monkeypatch.setattr(CurrentRanks, "_software", lambda self, size: {"torch": "2.14.0"})
    else:
        monkeypatch.setenv("NCCL_PROTO", "LL")
    figures(pytester, a=[94e9], b=[100e9])
    result = judged(pytester, "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["SKIPPED * shifted: * 5.0 % slower: the machine, or what is under all tests"])


@pytest.mark.parametrize(
    ("files", "outcome", "status"),
    [
        ([], "skipped", pytest.ExitCode.TESTS_FAILED),  # not of the GPUs alone
        (["at_limit"], "failed", pytest.ExitCode.TESTS_FAILED),
        (["control_at_limit"], "failed", pytest.ExitCode.TESTS_FAILED),
        (["control_at_limit", "at_limit"], "skipped", pytest.ExitCode.OK),
        (["control_at_limit", "first_at_limit"], "failed", pytest.ExitCode.TESTS_FAILED),
    ],
    ids=["neither", "the figure", "the control workload", "both", "one launch of six"],
)
def test_a_power_limit_slows_only_what_is_at_it(
    files: list[str],
    outcome: str,
    status: pytest.ExitCode,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controlled(pytester, monkeypatch, now=[1.05e-3], at_limit=False)
    figures(pytester, a=[94e9, 94e9], b=[100e9])
    for name in files:
        (pytester.path / name).touch()
    result = judged(pytester)
    result.assert_outcomes(passed=1, **{outcome: 1})
    assert result.ret == status


@pytest.mark.parametrize(("until", "outcome"), [("2999-12-31", "skipped"), ("2026-01-01", "failed")])
def test_a_known_loss_is_where_the_control_workload_explains_from(
    until: str, outcome: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    controlled(pytester, monkeypatch, now=[1.05e-3])
    [file] = (pytester.path / "baselines").glob("*.json")
    data = json.loads(file.read_text())
    known = {"status": "regressed", "reason": "a slow driver", "until": until, "center": 90e9}
    data["tests"]["test_it.py::test_a[2ranks]"]["expected"] = {"busbw": known}
    file.write_text(json.dumps(data))
    figures(pytester, a=[85e9], b=[100e9])  # 16 % less, and 6 % less than is expected
    judged(pytester).assert_outcomes(passed=1, **{outcome: 1})


@pytest.mark.parametrize("surroundings", ["env={'X': '1'}", "device='cpu'"])
def test_the_control_workload_tells_nothing_of_tests_in_other_surroundings(
    surroundings: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked = f"@pytest.mark.ranks(2, {surroundings})\ndef test_a("
    tests = TESTS.partition("def test_c")[0].replace("def test_a(", marked)
    controlled(pytester, monkeypatch, now=[1.05e-3], tests=tests)
    figures(pytester, a=[94e9], b=[100e9])
    judged(pytester).assert_outcomes(passed=1, failed=1)


def test_a_suite_at_the_power_limit_of_slower_gpus_is_no_finding(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{index}" for index in range(12)]
    tests = "".join(f"\ndef test_{name}(perf):\n    measured(perf, {name!r})\n" for name in names)
    figures(pytester, **dict.fromkeys(names, STEADY * 2))
    controlled(pytester, monkeypatch, now=[1.05e-3], tests=TESTS.partition("def test_a")[0] + tests)
    figures(pytester, **{name: [95e9] for name in names})
    result = judged(pytester)
    result.assert_outcomes(skipped=12)
    assert result.ret == pytest.ExitCode.OK


def test_a_loss_beyond_that_of_the_control_workload_is_a_regression(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    controlled(pytester, monkeypatch, now=[1.05e-3])
    figures(pytester, a=[80e9], b=[94e9])
    judged(pytester).assert_outcomes(failed=1, skipped=1)


def test_a_suspect_on_a_slower_machine_that_fresh_launches_clear_is_the_same(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    controlled(pytester, monkeypatch, now=[1.05e-3])
    figures(pytester, a=[94e9, 100e9], b=[100e9])
    result = judged(pytester)
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.OK


def test_under_xdist_a_loss_of_the_control_workload_too_is_no_pass(tmp_path: Path) -> None:
    conftest = CONFTEST + "fake_gpus.without_ranks(pytest.MonkeyPatch())\n" + CONTROL
    tests = TESTS.partition("def test_c")[0]
    folder = write(tmp_path, {"conftest.py": conftest, "test_it.py": tests, "pytest.ini": "[pytest]\n"})
    for name, values in {"a": STEADY * 2, "b": STEADY * 2, "control": [1e-3, 1.001e-3, 0.999e-3] * 4}.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    run = run_pytest(folder, "--gpus=2", "--update-baselines", "--launches=10", "--reason=first")
    assert run.result.ret == 0, run.text
    for name, values in {"a": [94e9], "b": [100e9], "control": [1.05e-3]}.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    run = run_pytest(folder, "--gpus=2", "-n1")
    run.result.assert_outcomes(passed=1, skipped=1)
    assert run.result.ret == pytest.ExitCode.TESTS_FAILED  # the machine, or what is under all tests


def test_no_control_workload_runs_in_surroundings_of_a_tests_own(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_ranks(monkeypatch)
    monkeypatch.setattr(CurrentRanks, "_control", CurrentRanks._control)
    pytester.makeconftest(CONTROL)
    pytester.makepyfile(
        test_it="""
        import pytest
        from pytest_gpuperf import Metric

        @pytest.mark.perf
        @pytest.mark.ranks(2, device="cpu")
        def test_on_cpus(perf):
            perf.check(time=Metric(1.0, "s", "lower"))

        @pytest.mark.perf
        @pytest.mark.ranks(2, env={"NCCL_P2P_DISABLE": "1"})
        def test_without_peers(perf):
            perf.check(time=Metric(1.0, "s", "lower"))
        """
    )
    figures(pytester, control=[1e-3, 2e-3])
    options = ("--gpus=2", "--update-baselines", "--reason=first", "--gpuperf-json=results.json")
    assert pytester.runpytest_inprocess(*options).ret == 0
    assert json.loads((pytester.path / "control.json").read_text()) == [1e-3, 2e-3]


def test_a_control_workload_that_moved_alone_is_no_finding(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    controlled(pytester, monkeypatch, now=[0.95e-3])
    figures(pytester, a=[100e9], b=[100e9])
    result = judged(pytester)
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["the control workload, matmul on 2 ranks, is 5.0 % faster than *"])
