"""Suspects: which fresh launches they get, what is reported of them, and when."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.fake_gpus import gpu, show, without_ranks
from tests.run.test_judged_run import CONFTEST
from tests.scripted_figures import STEADY, TESTS, figures, judged
from tests.whole_run import run_pytest, write

pytestmark = pytest.mark.usefixtures("eight_gpus")


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


def log(project: pytest.Pytester) -> list[str]:
    """What fixtures have done since the last call."""
    path = project.path / "log"
    lines = path.read_text().splitlines() if path.exists() else []
    path.write_text("")
    return lines


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


def test_a_policy_of_a_metrics_own_decides_and_is_told(project: pytest.Pytester) -> None:
    path = project.path / "baselines" / "2x-nvidia-h200-nv18.json"
    data = json.loads(path.read_text())
    data["tests"]["test_it.py::test_b[2ranks]"]["policy"] = {"busbw": {"detect": 0.3, "reason": "a rough one"}}
    path.write_text(json.dumps(data))
    figures(project, a=[90e9] * 6, b=[90e9] * 6)
    result = judged(project)
    result.assert_outcomes(passed=2, failed=1)
    told = "slower by 30.0 % is to be found: a rough one"
    assert f"1 figures by a policy of their own: {told}" in result.outlines
    results = project.path / "results.json"
    figures(project, a=[100e9])
    assert judged(project, f"--gpuperf-json={results}").ret == 0
    policies = [one["policy"] for one in json.loads(results.read_text())["verdicts"]]
    assert [policy for policy in policies if policy] == [{"reason": "a rough one", "detect": 0.3}]


def test_a_run_that_asks_for_less_says_so(project: pytest.Pytester) -> None:
    figures(project, a=[30e9])
    lax = ("-o", "gpuperf_tolerance=9", "-o", "gpuperf_min_effect=5")
    told = (
        "by gpuperf_tolerance and gpuperf_min_effect this run asks for less than usual: slower by 900.0 % is to be "
        "found (usually 5.0 %), slower by 500.0 % is no regression (usually 1.5 %)"
    )
    result = judged(project, *lax)
    assert result.ret == 0
    assert told in result.outlines
    assert told not in judged(project, *lax, "-k", "nothing").outlines


def test_only_suspects_run_again_and_all_of_them_in_the_same_launches(project: pytest.Pytester) -> None:
    figures(project, a=[90e9, 100e9], b=[90e9, 100e9])
    judged(project).assert_outcomes(passed=3)
    ups = [line for line in log(project) if line.startswith("up")]
    assert ups == [
        "up test_a[2ranks]",
        "up test_b[2ranks]",
        *(f"up test_{name}#{number}[2ranks]" for number in (2, 3, 4, 5, 6) for name in "ab"),
    ]


NOISY = [100e9, 101.6e9, 98.4e9, 101.5e9, 98.5e9]


@pytest.mark.parametrize(
    ("fresh", "outcome", "line"),
    [
        (10e9, "failed", "*busbw: 10.00 GB/s is 90.0 % worse than*, median of 25 fresh launches) on *"),
        (96e9, "skipped", "*undecided: *busbw: 96.00 GB/s is 4.0 % worse than*could hide from 25 fresh launches in *"),
    ],
)
def test_the_most_launches_are_run_where_the_spread_is_too_wide(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, fresh: float, outcome: str, line: str
) -> None:
    without_ranks(monkeypatch)
    pytester.makepyfile(test_it=TESTS)
    figures(pytester, a=NOISY, b=NOISY, c=NOISY)
    assert pytester.runpytest_inprocess("--gpus=2", "--update-baselines", "--reason=first").ret == 0
    figures(pytester, a=[fresh], b=[120e9], c=[120e9])
    result = judged(pytester, "-rs")
    result.assert_outcomes(passed=2, **{outcome: 1})
    result.stdout.fnmatch_lines(["gpuperf: worse than expected, 25 fresh launches decide: *test_a*", line])


def test_who_wraps_a_test_wraps_its_fresh_launches(project: pytest.Pytester) -> None:
    project.makeconftest(
        """
        import pytest

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(item):
            print(f"begins {item.name}")
            done = yield
            print(f"ends {item.name}")
            return done
        """
    )
    figures(project, b=[90e9, 100e9])
    result = judged(project, "--capture=no")
    result.assert_outcomes(passed=3)
    wrapped = [line.split() for line in result.outlines if line.startswith(("begins test_b#", "ends test_b#"))]
    assert wrapped == [[verb, f"test_b#{number}[2ranks]"] for number in range(2, 7) for verb in ("begins", "ends")]


def test_each_launch_has_fixtures_of_its_own(project: pytest.Pytester) -> None:
    figures(project, a=[90e9, 100e9])
    judged(project).assert_outcomes(passed=3)
    lines = log(project)
    assert lines.count("module up") == lines.count("module down") == 2  # the run's, and that of its fresh launches
    ups, downs = ([line.split()[1] for line in lines if line.startswith(word)] for word in ("up", "down"))
    assert sorted(ups) == sorted(downs)
    assert len(ups) == 2 + 5


STRICT = """
import pytest

def pytest_collection_modifyitems(items):
    for item in items:
        if "test_a" in item.name:
            item.add_marker(pytest.mark.xfail(strict=True))
"""


def test_a_test_that_passes_and_should_not_has_failed_by_itself(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    project.makeconftest(STRICT)
    result = judged(project)
    result.assert_outcomes(passed=2, failed=1)
    told = [line.partition(",title=")[2] for line in result.outlines if line.startswith("::error ")]
    assert told == ["failed%3A test_it.py%3A%3Atest_a[2ranks]::[XPASS(strict)]"]


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
    figures(pytester, **{name: [95e9] for name in names} | {"t0": [50e9], "t1": [50e9, 95e9]})
    result = judged(pytester)
    result.assert_outcomes(failed=2, skipped=10)
    result.stdout.fnmatch_lines(
        [
            "gpuperf: worse than expected, 5 fresh launches decide: *test_t0[[]2ranks[]], *test_t1[[]2ranks[]]",
            "*test_t0* busbw: 50.00 GB/s is 50.0 % worse than *",
        ]
    )
    assert "12 figures on 2x-nvidia-h200-nv18: 2 regressed, 10 shifted" in result.outlines
    data = json.loads((path := pytester.path / "baselines" / "2x-nvidia-h200-nv18.json").read_text())
    for test in data["tests"].values():
        test["expected"] = {"busbw": {"status": "regressed", "reason": "a slow driver", "until": "2099-01-01"}}
    path.write_text(json.dumps(data))
    figures(pytester, **{name: [95e9] for name in names})
    result = judged(pytester)
    result.assert_outcomes(passed=12)
    assert result.ret == pytest.ExitCode.OK
    for test in data["tests"].values():
        del test["expected"]
    path.write_text(json.dumps(data))
    figures(pytester, **{name: [100e9] if name == "t0" else [95e9] for name in names})
    result = judged(pytester)
    result.assert_outcomes(passed=1, skipped=11)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["the whole run is 5.3 % slower than its baselines (the median of all figures): *"])
    assert "12 figures on 2x-nvidia-h200-nv18: 11 shifted, 1 same" in result.outlines
    assert not any("fresh launches decide" in line for line in result.outlines)
    # A finding also where no figure alone is worth one.
    result = judged(pytester, "-o", "gpuperf_tolerance=0.3", "-o", "gpuperf_min_effect=0.2")
    result.assert_outcomes(passed=12)
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_verdict_says_that_its_baseline_is_of_other_gpus(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures(project, b=[90e9])
    judged(project).stdout.fnmatch_lines(
        ["*is 10.0 % worse than the baseline 100.0 GB/s (spread 0.1 % over 10 launches, bound*"]
    )
    show(monkeypatch, list(map(gpu, (5, 6))))
    judged(project).stdout.fnmatch_lines(["*(spread 0.1 % over 10 launches, none on these very GPUs, bound *"])


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


NOISY = [100e9, 101.6e9, 98.4e9, 101.5e9, 98.5e9]


def test_the_command_for_an_undecided_figure_lets_it_be_decided(project: pytest.Pytester) -> None:
    (project.path / "baselines" / "2x-nvidia-h200-nv18.json").unlink()  # the other tests are quiet
    figures(project, a=NOISY)
    recorded = ("--gpus=2", "--update-baselines", "--reason=x", "-k", "test_a")
    project.runpytest_inprocess(*recorded).assert_outcomes(passed=5)
    figures(project, a=[95e9])
    result = judged(project, "-k", "test_a", "-rs")
    result.assert_outcomes(skipped=1)
    found = re.search(
        r"its baseline needs (\d+) launches, so add (\d+) or more: (pytest .*?); or let", result.stdout.str()
    )
    assert found is not None
    needed, more = int(found[1]), int(found[2])
    assert needed == more + 5

    figures(project, a=NOISY * needed)
    added = project.runpytest_inprocess(*shlex.split(found[3])[1:])
    added.assert_outcomes(passed=more)
    assert added.ret == pytest.ExitCode.OK
    for figure, outcome in ((90e9, "failed"), (100e9, "passed")):
        figures(project, a=[95e9, figure])
        judged(project, "-k", "test_a").assert_outcomes(**{outcome: 1})
