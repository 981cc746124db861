"""Suspects: which fresh launches they get, what is reported of them, and when."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_gpuperf import machine
from pytest_gpuperf.session import Session
from tests.fake_gpus import gpu, without_ranks
from tests.test_judged_run import CONFTEST
from tests.whole_run import run_pytest, write

pytestmark = pytest.mark.usefixtures("eight_gpus")

# Each call of a test takes the next of its figures, the last one for ever.
TESTS = """
import json
from collections.abc import Sequence
from pathlib import Path
import pytest
from pytest_gpuperf import Metric

FOLDER = Path(__file__).parent
pytestmark = [pytest.mark.perf, pytest.mark.ranks(2)]

def log(line):
    with (FOLDER / "log").open("a") as file:
        print(line, file=file)

@pytest.fixture(scope="module")
def module_fixture():
    log("module up")
    yield
    log("module down")

@pytest.fixture
def own(request, module_fixture):
    log(f"up {request.node.name}")
    yield
    log(f"down {request.node.name}")

def measured(perf, name):
    path = FOLDER / f"{name}.json"
    figures = json.loads(path.read_text())
    path.write_text(json.dumps(figures[1:] or figures))
    if figures[0] is None:
        raise RuntimeError("this launch came to nothing")
    if figures[0] == "interrupt":
        raise KeyboardInterrupt
    if figures[0] == "other":
        perf.check(time=Metric(1.0, "s", "lower"))
    elif figures[0] == "hot":
        perf.check(busbw=Metric(100e9, "B/s", "higher", clock="host", invalid="GPU GPU-1: power brake"))
    else:
        # The first of several figures is the first launch's, the last one that of all fresh launches.
        capped = (FOLDER / ("at_limit" if len(figures) == 1 else "first_at_limit")).exists()
        perf.check(busbw=Metric(figures[0], "B/s", "higher", limit=450e9, clock="host", power_capped=capped))

def test_a(perf, own):
    measured(perf, "a")

def test_b(perf, own):
    measured(perf, "b")

def test_c(perf):
    measured(perf, "c")
"""

STEADY = [100e9, 100.1e9, 99.9e9, 100.2e9, 99.8e9]


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Three tests with steady baselines of ten launches."""
    without_ranks(monkeypatch)
    pytester.makepyfile(test_it=TESTS)
    figures(pytester, a=STEADY * 2, b=STEADY * 2, c=STEADY * 2)
    options = ("--gpus=2", "--update-baselines", "--launches=10", "--reason=first")
    assert pytester.runpytest_inprocess(*options).ret == 0
    figures(pytester, a=[100e9], b=[100e9], c=[100e9])
    log(pytester)
    return pytester


def figures(project: pytest.Pytester, **of_test: Sequence[float | str | None]) -> None:
    """What the tests are going to measure."""
    for name, values in of_test.items():
        (project.path / f"{name}.json").write_text(json.dumps(values))


def log(project: pytest.Pytester) -> list[str]:
    """What fixtures have done since the last call."""
    path = project.path / "log"
    lines = path.read_text().splitlines() if path.exists() else []
    path.write_text("")
    return lines


def judged(project: pytest.Pytester, *options: str) -> pytest.RunResult:
    return project.runpytest_inprocess("--gpus=2", "-v", *options)


def test_a_launch_that_came_out_slow_is_cleared_by_fresh_ones(project: pytest.Pytester) -> None:
    figures(project, b=[90e9, 100e9, 99.9e9, 100.1e9, 100e9, 100e9])
    result = judged(project)
    result.assert_outcomes(passed=3)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["gpuperf: worse than expected, 5 fresh launches decide: test_it.py::test_b[[]2ranks[]]"]
    )
    assert sum("test_b[2ranks] PASSED" in line for line in result.outlines) == 1
    assert "3 figures on 2x-nvidia-h200-nv18: 3 same" in result.outlines


def test_a_slower_program_fails_by_what_fresh_launches_measured(project: pytest.Pytester) -> None:
    figures(project, b=[80e9, 94e9, 93e9, 95e9, 94e9, 94e9])
    result = judged(project)
    result.assert_outcomes(passed=2, failed=1)
    line = r"test_it\.py::test_b\[2ranks\] busbw: 94\.00 GB/s is 6\.0 % worse than the baseline 100\.0 GB/s "
    assert any(
        re.match(line + r"\(spread 0\.\d % over 10 launches, bound \d\.\d %, median of 5 fresh", text)
        for text in result.outlines
    )


def test_only_suspects_run_again_and_all_of_them_in_the_same_launches(project: pytest.Pytester) -> None:
    figures(project, a=[90e9, 100e9], b=[90e9, 100e9])
    judged(project).assert_outcomes(passed=3)
    ups = [line for line in log(project) if line.startswith("up")]
    assert ups == [
        "up test_a[2ranks]",
        "up test_b[2ranks]",
        *(f"up test_{name}#{number}[2ranks]" for number in (2, 3, 4, 5, 6) for name in "ab"),
    ]


def test_each_launch_has_fixtures_of_its_own(project: pytest.Pytester) -> None:
    figures(project, a=[90e9, 100e9])
    judged(project).assert_outcomes(passed=3)
    lines = log(project)
    assert lines.count("module up") == lines.count("module down") == 2  # the run's, and that of its fresh launches
    ups, downs = ([line.split()[1] for line in lines if line.startswith(word)] for word in ("up", "down"))
    assert sorted(ups) == sorted(downs)
    assert len(ups) == 2 + 5


def test_a_fresh_launch_that_fails_fails_the_test(project: pytest.Pytester) -> None:
    figures(project, a=[90e9, 100e9, None])
    result = judged(project)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*test_it.py::test_a[[]2ranks[]] FAILED*",
            "*RuntimeError: this launch came to nothing",
            "*in a fresh launch, test_it.py::test_a#3[[]2ranks[]], call",
        ]
    )


@pytest.mark.parametrize(
    ("figure", "message"),
    [
        ("hot", "*was measured on a machine that was not fit for it, twice: GPU GPU-1: power brake"),
        (500e9, "*500.0 GB/s is above the physical limit 450.0 GB/s*"),
        ("other", "*test_a#3[[]2ranks[]]: the test checked no busbw in this launch, as it had before"),
    ],
    ids=["invalid", "above its limit", "not there"],
)
def test_a_figure_that_proves_nothing_decides_nothing(
    project: pytest.Pytester, figure: float | str, message: str
) -> None:
    figures(project, a=[90e9, 100e9, figure, 100e9])
    result = judged(project)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines([message, "*in a fresh launch, test_it.py::test_a#3[[]2ranks[]], call"])


def test_ctrl_c_in_a_fresh_launch_leaves_suspects_undecided(project: pytest.Pytester) -> None:
    figures(project, a=[90e9, 100e9, "interrupt"])
    result = project.runpytest_inprocess("--gpus=2", "-rs", no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["SKIPPED * suspect: *in one launch, and the run ended before others decided"])
    assert "INTERNALERROR" not in result.stdout.str()


def test_a_test_that_fails_by_itself_is_no_suspect(project: pytest.Pytester) -> None:
    figures(project, a=[None])
    judged(project).assert_outcomes(passed=2, failed=1)
    assert [line for line in log(project) if line.startswith("up")] == ["up test_a[2ranks]", "up test_b[2ranks]"]


def test_a_run_that_is_interrupted_leaves_its_suspects_undecided(project: pytest.Pytester) -> None:
    figures(project, a=[90e9, 100e9], b=[None])
    result = judged(project, "-x", "-rs")
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * suspect: *in one launch, and the run ended before others decided"])


def test_a_machine_that_is_slower_as_a_whole_is_one_finding(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_ranks(monkeypatch)
    names = [f"t{index}" for index in range(12)]
    tests = "".join(f"\ndef test_{name}(perf):\n    measured(perf, {name!r})\n" for name in names)
    pytester.makepyfile(test_it=TESTS.partition("def test_a")[0] + tests)
    figures(pytester, **dict.fromkeys(names, STEADY * 2))
    options = ("--gpus=2", "--update-baselines", "--launches=10", "--reason=first")
    assert pytester.runpytest_inprocess(*options).ret == 0
    figures(pytester, **{name: [100e9] if name == "t0" else [95e9] for name in names})
    result = judged(pytester)
    result.assert_outcomes(passed=1, skipped=11)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["the whole run is 5.3 % slower than its baselines (the median of all figures): *"])
    assert "12 figures on 2x-nvidia-h200-nv18: 11 shifted, 1 same" in result.outlines
    assert not any("fresh launches decide" in line for line in result.outlines)


CONTROL = """
import json
from pathlib import Path
from pytest_gpuperf.session import Session
from pytest_gpuperf.verdicts.controls import Control

CONTROL = Path(__file__).with_name("control.json")

def control(self, world_size):
    seconds = json.loads(CONTROL.read_text())
    CONTROL.write_text(json.dumps(seconds[1:] or seconds))
    return {f"matmul on {world_size} ranks": Control(seconds[0], CONTROL.with_name("control_at_limit").exists())}

Session._control = control
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
    monkeypatch.setattr(Session, "_control", Session._control)  # and undone after the test
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
        monkeypatch.setattr(Session, "_software", lambda self, size: {"torch": "2.14.0"})
    else:
        monkeypatch.setenv("NCCL_PROTO", "LL")
    figures(pytester, a=[94e9], b=[100e9])
    result = judged(pytester, "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["SKIPPED * shifted: * 5.0 % slower: the machine, or what is under all tests"])


def test_a_verdict_says_that_its_baseline_is_of_other_gpus(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures(project, b=[90e9])
    judged(project).stdout.fnmatch_lines(
        ["*is 10.0 % worse than the baseline 100.0 GB/s (spread 0.1 % over 10 launches, bound*"]
    )
    monkeypatch.setattr(machine, "visible_gpus", lambda environ: tuple(map(gpu, (5, 6))))
    judged(project).stdout.fnmatch_lines(["*(spread 0.1 % over 10 launches, none on these very GPUs, bound *"])


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
    monkeypatch.setattr(Session, "_control", Session._control)
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


def test_under_xdist_a_suspect_is_decided_before_the_next_test(tmp_path: Path) -> None:
    conftest = CONFTEST + "fake_gpus.without_ranks(pytest.MonkeyPatch())\n"
    folder = write(tmp_path, {"conftest.py": conftest, "test_it.py": TESTS, "pytest.ini": "[pytest]\n"})
    for name in "abc":
        (folder / f"{name}.json").write_text(json.dumps(STEADY * 2))
    run = run_pytest(folder, "--gpus=2", "--update-baselines", "--launches=10", "--reason=first")
    assert run.result.ret == 0, run.text
    for name, values in {"a": [90e9, 100e9], "b": [80e9], "c": [100e9]}.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    run = run_pytest(folder, "--gpus=2", "-n2")
    run.result.assert_outcomes(passed=2, failed=1)
    assert "3 figures on 2x-nvidia-h200-nv18: 1 regressed, 2 same" in run.section("gpuperf")
