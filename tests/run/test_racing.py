"""Suspects: what is launched to decide about them, in which order, and what is reported of them, and when."""

import itertools
import json
import re
from collections.abc import Mapping, Sequence

import pytest

from pytest_gpuperf.features.racing.arms.arm import Measured
from pytest_gpuperf.features.racing.spending import Spending
from pytest_gpuperf.run.current_ranks import CurrentRanks
from tests import scripted_arms
from tests.arms.checkouts import commit
from tests.fake_gpus import gpu, show, without_ranks
from tests.scripted_arms import ScriptedArm, launched, script
from tests.scripted_figures import STEADY, TESTS, figures, judged

pytestmark = pytest.mark.usefixtures("eight_gpus")

COMMIT = "abc1234000000000000000000000000000000000"


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Three tests with steady records of ten launches of one commit."""
    monkeypatch.delenv("CI", raising=False)  # where what is undecided fails the run
    without_ranks(monkeypatch)
    scripted_arms.install(monkeypatch, pytester.path)
    monkeypatch.setattr("pytest_gpuperf.run.current_launch.read_commit", lambda folder: COMMIT)
    monkeypatch.setattr("pytest_gpuperf.run.current_launch.is_dirty", lambda folder: False)
    pytester.makepyfile(test_it=TESTS)
    recorded(pytester, a=STEADY * 2, b=STEADY * 2, c=STEADY * 2)
    return pytester


def recorded(project: pytest.Pytester, *options: str, **tests: list[float]) -> None:
    """Has these figures recorded, and lets each test measure 100 GB/s from now on."""
    figures(project, **tests)
    options = ("--gpus=2", "--update-baselines", "--launches=10", "--reason=first", *options)
    assert project.runpytest_inprocess(*options).ret == 0
    figures(project, **{name: [100e9] for name in tests})
    launched(project)


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run has GPUs that the record does not know."""
    show(monkeypatch, list(map(gpu, (5, 6))))


def line_of(result: pytest.RunResult, beginning: str) -> str:
    return next(line for line in result.outlines if line.startswith(beginning))


SUSPECT = [90e9]
RACES = [90e9, 90e9, 100e9]
"""Two more launches that are as slow, and those of a race that are not."""


def test_a_quiet_run_launches_nothing(project: pytest.Pytester) -> None:
    assert judged(project).ret == 0
    assert launched(project) == []


def test_a_launch_that_came_out_slow_is_cleared_by_the_next(project: pytest.Pytester) -> None:
    figures(project, b=SUSPECT)
    result = judged(project)
    result.assert_outcomes(passed=3)
    assert result.ret == 0
    told = "gpuperf: worse than expected, launch 1 of at most 3 against the baseline (about 1 s): "
    assert f"{told}test_it.py::test_b[2ranks]" in result.outlines
    launches = launched(project)  # no arm was opened
    assert launches == ["here b"] * len(launches)
    assert 1 <= len(launches) <= 3
    assert sum("test_b[2ranks] PASSED" in line for line in result.outlines) == 1
    assert "3 metrics on 2x-nvidia-h200-nv18: 3 same" in result.outlines


def test_a_run_without_races_leaves_a_slow_figure_undecided(project: pytest.Pytester) -> None:
    figures(project, b=SUSPECT)
    result = judged(project, "-p", "no:gpuperf-racing", "-rs")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED *: busbw 90.00 GB/s: 10.0 % slower than 100.0 GB/s, undecided*"])
    assert launched(project) == []


def test_code_that_is_slower_loses_a_race_against_the_records(project: pytest.Pytester) -> None:
    figures(project, b=SUSPECT)
    script(project, "present", b=[94e9, 94.1e9])
    result = judged(project)
    result.assert_outcomes(passed=2, failed=1)
    lines = launched(project)
    clearing = lines.index("abc1234 b")
    assert lines[:clearing] == ["here b"] * clearing
    assert 1 <= clearing <= 3
    blocks = lines[clearing:-1]
    assert blocks == ["abc1234 b", "present b", "present b", "abc1234 b"] * (len(blocks) // 4)
    assert lines[-1] == "closed"
    lines = result.outlines[
        result.outlines.index("busbw 94.10 GB/s: 5.9 % slower than 100.0 GB/s, because of the code") :
    ]
    assert lines[1].startswith("  spread 0.1 % over 10 launches; a loss of ")
    assert re.fullmatch(r"  code -5\.9 % GB/s \(.* in \d+ launches of each\), against abc123400000", lines[2])
    assert re.fullmatch(r"  environment [+-]0\.\d % GB/s \(.*\), against the baseline", lines[3])
    assert lines[4] == '  bisect with: pytest "test_it.py::test_b[2ranks]" --gpus 2 --bisect=abc123400000'
    told = (
        "gpuperf: race against abc123400000, block 1 of at most 7 (4 launches, about 1 s): test_it.py::test_b[2ranks]"
    )
    assert told in result.outlines


def test_code_that_is_slower_has_its_changed_files_named(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pytest_gpuperf.features.racing.racing.ChangedCode.of", lambda self, item, against: ("p.py", against[:3])
    )
    figures(project, b=SUSPECT)
    script(project, "present", b=[94e9, 94.1e9])
    result = judged(project)
    line_of(result, "busbw 94.10 GB/s: 5.9 % slower than 100.0 GB/s, because of the code (p.py and 1 more)")
    line_of(result, "  changed since, and imported by the test: p.py, abc")


@pytest.mark.parametrize("known", [True, False])
def test_a_loss_of_the_environment_skips_its_tests_and_fails_the_run_once_on_known_gpus(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    if not known:
        elsewhere(monkeypatch)
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    figures(project, a=SUSPECT, b=SUSPECT)
    for arm in ("old", "present"):
        script(project, arm, a=[90e9], b=[90e9])
    result = judged(project, "-rs")
    result.assert_outcomes(passed=1, skipped=2)
    assert result.ret == (pytest.ExitCode.TESTS_FAILED if known else pytest.ExitCode.OK)
    result.stdout.fnmatch_lines(["SKIPPED *: busbw 90.00 GB/s: 10.0 % slower than 100.0 GB/s, the environment; *"])
    finding = line_of(result, "the environment is slower, not the code: 2 metrics lost against the baseline")
    assert finding.endswith("(abc123400000) is as slow today; what differs: NCCL_ALGO not set -> Tree")
    assert set(launched(project)[:-1]) == {"here ab", "abc1234 ab", "present ab"}
    assert judged(project, "--environment=warn").ret == 0
    assert judged(project, "--environment=fail").ret == pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkout has the record's code."""
    monkeypatch.setattr("pytest_gpuperf.features.racing.same_code.SameCode.of", lambda self, against: against == COMMIT)


@pytest.mark.usefixtures("unchanged")
def test_code_that_did_not_change_races_nobody(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere(monkeypatch)
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    figures(project, a=SUSPECT, b=SUSPECT)
    script(project, "present", a=[90e9, 90e9, 90e9, 90.1e9], b=[100e9])
    result = judged(project, "-rs")
    result.assert_outcomes(passed=2, skipped=1)
    assert launched(project) == ["here ab", "here ab", *["here a"] * 4]
    told = (
        "gpuperf: timing the code of the baseline (abc123400000), launch 1 of 4 (about 1 s): test_it.py::test_a[2ranks]"
    )
    assert told in result.outlines
    shares = "code unchanged since abc123400000; environment -9.9 % GB/s (* in 4 launches), against the baseline"
    result.stdout.fnmatch_lines([f"SKIPPED *: busbw 90.10 GB/s: 9.9 % slower than *, the environment; *; {shares}*"])
    finding = line_of(result, "the environment is slower, not the code: 1 metric lost against the baseline")
    assert finding.endswith("(abc123400000) is as slow today; what differs: NCCL_ALGO not set -> Tree")


@pytest.mark.usefixtures("unchanged")
def test_launches_that_may_clear_a_suspect_do_not_count_for_code_that_did_not_change(project: pytest.Pytester) -> None:
    figures(project, b=SUSPECT)
    script(project, "present", b=[90e9])
    result = judged(project, "-rs")
    result.assert_outcomes(passed=2, skipped=1)
    lines = launched(project)
    assert set(lines) == {"here b"}
    assert 4 < len(lines) <= 3 + 4
    result.stdout.fnmatch_lines(["SKIPPED *, the environment; * in 4 launches), against the baseline"])


@pytest.mark.usefixtures("unchanged")
def test_a_launch_of_unchanged_code_that_breaks_fails_its_test(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere(monkeypatch)
    figures(project, a=SUSPECT, b=SUSPECT)
    script(project, "present", a=[90e9], b=[90e9, 90e9, "it raised"])
    result = judged(project)
    result.assert_outcomes(passed=1, skipped=1, failed=1)
    assert launched(project) == ["here ab"] * 3 + ["here a"] * 3
    result.stdout.fnmatch_lines(["a later launch of the test came to nothing: it raised*"])


@pytest.mark.usefixtures("unchanged")
def test_a_budget_bounds_launches_of_unchanged_code(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere(monkeypatch)
    figures(project, b=SUSPECT)
    result = judged(project, "--race-budget=1e-9")
    result.assert_outcomes(passed=2, skipped=1)
    assert launched(project) == []


@pytest.mark.usefixtures("unchanged")
def test_code_that_did_not_change_races_a_commit_that_the_user_names(project: pytest.Pytester) -> None:
    result = judged(project, "--against=HEAD")
    result.assert_outcomes(passed=3)
    assert "HEAD abc" in launched(project)  # whoever names a commit wants a race


def test_the_run_lets_go_of_its_gpus_before_its_arms_lease_them(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vacated(ranks: CurrentRanks) -> None:
        with (project.path / "launches").open("a") as log:
            print("vacated", file=log)

    monkeypatch.setattr(CurrentRanks, "vacate", vacated)
    elsewhere(monkeypatch)
    figures(project, b=SUSPECT)
    script(project, "present", b=RACES)
    judged(project)
    assert launched(project)[:4] == ["here b", "here b", "vacated", "abc1234 b"]


def test_on_gpus_that_the_record_does_not_know_two_launches_may_clear_a_suspect(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere(monkeypatch)
    figures(project, b=SUSPECT)
    judged(project).assert_outcomes(passed=3)
    assert launched(project) == ["here b", "here b"]
    figures(project, b=SUSPECT)
    script(project, "present", b=RACES)
    judged(project).assert_outcomes(passed=3)
    assert launched(project) == ["here b"] * 2 + ["abc1234 b", "present b", "present b", "abc1234 b", "closed"]


def test_all_suspects_share_the_launches_and_leave_them_when_they_are_decided(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere(monkeypatch)
    figures(project, a=SUSPECT, b=SUSPECT)
    script(project, "present", a=RACES, b=[94e9])
    judged(project).assert_outcomes(passed=2, failed=1)
    lines = launched(project)[2:-1]
    assert lines[:4] == ["abc1234 ab", "present ab", "present ab", "abc1234 ab"]
    assert lines[4:]
    assert set(lines[4:]) == {"abc1234 b", "present b"}


@pytest.mark.parametrize(
    ("old", "why"),
    [
        ("no such test", "the test came to nothing in abc1234: no such test"),
        ("other", "the test checks no busbw in abc1234: compare commits in which it does"),
        ("unit", "busbw is in 's' by 'host' in abc1234, and now in 'B/s' by 'host': compare commits in which it is *"),
        ("body", "the test's body is another in abc1234: compare commits in which it is the same"),
        ("gone", "the old code took more than 5 s: give it more"),
    ],
)
def test_what_cannot_race_is_undecided_on_other_gpus(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, old: str, why: str
) -> None:
    elsewhere(monkeypatch)
    figures(project, a=SUSPECT)
    script(project, "old", a=[old])
    script(project, "present", a=[90e9])
    result = judged(project, "-rs")
    result.assert_outcomes(passed=2, skipped=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [f"SKIPPED *, undecided: it could not race; *; not raced: {why}; the baseline has too few *"]
    )


def test_one_test_that_cannot_race_is_in_no_others_way(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere(monkeypatch)
    figures(project, a=SUSPECT, b=SUSPECT)
    script(project, "old", a=["other"])
    script(project, "present", a=[90e9], b=[94e9])
    judged(project).assert_outcomes(passed=1, skipped=1, failed=1)
    assert launched(project)[2:5] == ["abc1234 ab", "present b", "present b"]


@pytest.mark.parametrize("slow", [70e9, 10e9])
def test_a_gross_loss_is_red_on_other_gpus_though_nothing_can_race(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, slow: float
) -> None:
    elsewhere(monkeypatch)
    (project.path / "no_race").write_text("git is not installed: install it")
    figures(project, a=[slow])
    script(project, "present", a=[slow])
    judged(project).assert_outcomes(passed=2, failed=1)


def test_in_ci_what_is_undecided_fails_the_run_once(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere(monkeypatch)
    (project.path / "no_race").write_text("git is not installed: install it")
    figures(project, a=SUSPECT, b=SUSPECT)
    script(project, "present", a=[90e9], b=[90e9])
    assert judged(project).ret == 0
    monkeypatch.setenv("CI", "true")
    result = judged(project)
    result.assert_outcomes(passed=1, skipped=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert line_of(result, "undecided: ") == (
        "undecided: it could not race: git is not installed: install it; or record these GPUs with "
        "--update-baselines=append (2 metrics); this fails the run; --undecided=warn lets it pass"
    )
    assert judged(project, "--undecided=warn").ret == 0
    monkeypatch.delenv("CI")
    assert judged(project, "--undecided=fail").ret == pytest.ExitCode.TESTS_FAILED


def test_what_cannot_race_on_gpus_that_the_record_knows_is_decided_by_it(project: pytest.Pytester) -> None:
    (project.path / "no_race").write_text("git is not installed: install it")
    figures(project, a=SUSPECT, b=SUSPECT)
    script(project, "present", a=[94e9])
    result = judged(project)
    result.assert_outcomes(passed=2, failed=1)
    line_of(result, "busbw 94.00 GB/s: 6.0 % slower than 100.0 GB/s, by the baseline alone")
    assert "  not raced: git is not installed: install it" in result.outlines
    assert "abc1234" not in " ".join(launched(project))


def test_a_record_of_changes_that_were_not_committed_cannot_race(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_gpuperf.run.current_launch.is_dirty", lambda folder: True)
    recorded(project, "--update-baselines=all", a=STEADY * 2, b=STEADY * 2, c=STEADY * 2)
    elsewhere(monkeypatch)
    figures(project, a=SUSPECT)
    script(project, "present", a=[90e9])
    result = judged(project, "-rs")
    result.stdout.fnmatch_lines(["SKIPPED *; not raced: the baseline names no clean commit: *"])


def test_an_accusation_rests_on_three_launches_of_each_arm_at_least(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere(monkeypatch)
    figures(project, b=SUSPECT)
    script(project, "present", b=[50e9])
    judged(project, "-k", "test_b").assert_outcomes(failed=1, deselected=2)  # for one figure 100 to 1 is enough
    lines = launched(project)[:-1]
    assert lines.count("abc1234 b") == lines.count("present b") == 4  # two blocks, each launch with its own parent


def test_a_budget_leaves_the_rest_undecided(project: pytest.Pytester) -> None:
    figures(project, a=SUSPECT)
    result = judged(project, "--race-budget=0.0001", "-rs")
    result.assert_outcomes(passed=2, skipped=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["SKIPPED *undecided: time ran out; *raise --race-budget"])
    assert launched(project) == []


def test_a_figure_that_stays_between_is_undecided(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere(monkeypatch)
    figures(project, a=SUSPECT)
    script(project, "present", a=[90e9, 90e9, 97.59e9])  # half way between the same and 5 % slower
    result = judged(project, "-rs")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED *, undecided: 14 launches differ too much; *"])
    assert len(launched(project)) == 2 + 28 + 1


@pytest.mark.parametrize("when", ["clearing", "racing"])
def test_ctrl_c_leaves_suspects_undecided_and_closes_the_arms(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    if when == "racing":
        elsewhere(monkeypatch)
    figures(project, a=SUSPECT)
    script(project, "present", a=["interrupt"] if when == "clearing" else [90e9, 90e9, "interrupt"])
    result = project.runpytest_inprocess("--gpus=2", "-rs", no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["SKIPPED *, undecided: no later launch decided; *"])
    assert "INTERNALERROR" not in result.stdout.str()
    assert launched(project)[-1] == ("here a" if when == "clearing" else "closed")


def test_a_run_that_stops_early_leaves_its_suspects_undecided(project: pytest.Pytester) -> None:
    figures(project, a=SUSPECT, b=[None])
    result = judged(project, "-x", "-rs")
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED *, undecided: no later launch decided; *"])


def test_a_test_that_fails_by_itself_is_no_suspect(project: pytest.Pytester) -> None:
    figures(project, a=[None])
    judged(project).assert_outcomes(passed=2, failed=1)
    assert launched(project) == []


@pytest.mark.parametrize(
    ("fresh", "message"),
    [
        ("RuntimeError: this launch came to nothing", "a later launch of the test came to nothing: RuntimeError: *"),
        ("other", "the test checked no busbw in a later launch, as it had before"),
    ],
)
def test_a_later_launch_that_breaks_fails_the_test_by_itself(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, fresh: str, message: str
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    figures(project, a=SUSPECT)
    script(project, "present", a=[fresh])
    result = judged(project, "--junitxml=report.xml", "--gpuperf-json=results.json")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines([message])
    assert "3 metrics on 2x-nvidia-h200-nv18: 1 undecided, 2 same" in result.outlines
    told = [line.partition(",title=")[2] for line in result.outlines if line.startswith("::error ")]
    assert len(told) == 1
    assert told[0].startswith("failed%3A test_it.py%3A%3Atest_a[2ranks]::" + message.rstrip("*"))
    assert 'name="gpuperf_fresh_launch"' in (project.path / "report.xml").read_text()
    written = json.loads((project.path / "results.json").read_text())
    assert [one["outcome"] for one in written["verdicts"]] == ["same", "same", "undecided"]
    assert "test_it.py::test_a[2ranks]" not in written["candidate"]["tests"]


def test_a_run_that_asks_for_less_says_so(project: pytest.Pytester) -> None:
    figures(project, a=[30e9])
    lax = ("-o", "gpuperf_minimum_slowdown=9", "-o", "gpuperf_minimum_effect=5")
    told = (
        "thresholds relaxed: gpuperf_minimum_slowdown is 900.0 % (default 5.0 %), gpuperf_minimum_effect is 500.0 % "
        "(default 1.5 %)"
    )
    result = judged(project, *lax)
    assert result.ret == 0
    assert told in result.outlines
    assert told not in judged(project, *lax, "-k", "nothing").outlines


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


@pytest.fixture
def twelve(project: pytest.Pytester) -> list[str]:
    """Twelve tests with steady records."""
    names = [f"t{index}" for index in range(12)]
    tests = "".join(f"\ndef test_{name}(perf):\n    measured(perf, {name!r})\n" for name in names)
    project.makepyfile(test_it=TESTS.partition("def test_a")[0] + tests)
    recorded(project, **dict.fromkeys(names, STEADY * 2))
    return names


def test_a_run_that_moved_as_a_whole_is_one_finding_if_a_second_launch_says_so_too(
    project: pytest.Pytester, twelve: list[str]
) -> None:
    figures(project, **{name: [97.5e9] for name in twelve})
    script(project, "present", **{name: [97.5e9] for name in twelve})
    result = judged(project)
    result.assert_outcomes(passed=12)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    line_of(result, "the whole run is 2.6 % slower than its baseline, in two launches (the median of all metrics): ")
    line_of(result, "gpuperf: the whole run moved alike: a second launch of 12 tests tells whether it does so again")
    assert launched(project) == ["here " + "".join(twelve)]
    assert judged(project, "--environment=warn").ret == 0
    script(project, "present", **{name: [100e9] for name in twelve})
    result = judged(project)
    assert result.ret == 0
    assert not any("the whole run is" in line for line in result.outlines)


def test_a_verdict_says_that_its_record_is_of_other_gpus(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere(monkeypatch)
    figures(project, b=SUSPECT)
    script(project, "present", b=[90e9])
    judged(project).stdout.fnmatch_lines(["  spread 0.1 % over 10 launches, none of them on these GPUs; a loss of *"])


def test_an_expected_failure_is_a_regression_and_no_launch_that_breaks(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.makeconftest(STRICT.replace("strict=True", "reason='known'"))
    figures(project, a=SUSPECT)
    script(project, "present", a=[94e9])
    result = judged(project)
    result.assert_outcomes(passed=2, xfailed=1)
    assert result.ret == 0
    assert any(line.startswith("regressed ") for line in result.outlines)
    figures(project, a=SUSPECT)
    script(project, "present", a=["it broke"])
    judged(project).assert_outcomes(passed=2, failed=1)
    figures(project, a=SUSPECT)
    script(project, "present", a=["interrupt"])
    result = project.runpytest_inprocess("--gpus=2", "-v", no_reraise_ctrlc=True)
    result.assert_outcomes(passed=2, skipped=1)


# Races of all tests, without a record.


def test_against_a_commit_every_test_races_and_no_record_is_asked(project: pytest.Pytester) -> None:
    (project.path / "baselines" / "2x-nvidia-h200-nv18.json").unlink()
    script(project, "present", b=[94e9], c=[107e9])
    result = judged(project, "--against=v1.0")
    result.assert_outcomes(passed=2, failed=1)
    lines = launched(project)
    assert lines[:4] == ["v1.0 abc", "present abc", "present abc", "v1.0 abc"]
    assert "3 metrics on 2x-nvidia-h200-nv18: 1 regressed, 1 improved, 1 same" in result.outlines
    line_of(result, "busbw 94.00 GB/s: 6.0 % slower than 100.0 GB/s of v1.0")
    assert re.fullmatch(r"  code -6\.0 % GB/s \(.*\), against v1\.0", line_of(result, "  code "))
    line_of(result, '  bisect with: pytest "test_it.py::test_b[2ranks]" --gpus 2 --bisect=v1.0')


def test_against_a_commit_a_race_that_time_ends_shows_both_values(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter([True, False])  # time for one block
    monkeypatch.setattr(Spending, "affords", lambda self, tests, launches: next(left))
    script(project, "present", b=[94e9])
    result = judged(project, "--against=v1.0", "-rs", "-k", "test_b")
    result.assert_outcomes(skipped=1, deselected=2)
    assert len(launched(project)) == 4 + 1  # and the end of the arms
    result.stdout.fnmatch_lines(["SKIPPED * of v1.0, undecided: time ran out; code -6.0 % GB/s *raise --race-budget"])


def test_against_a_commit_that_cannot_be_had_nothing_is_decided(project: pytest.Pytester) -> None:
    (project.path / "no_race").write_text("there is no v1.0: fetch it")
    result = judged(project, "--against=v1.0", "-rs")
    result.assert_outcomes(skipped=3)
    assert result.ret == pytest.ExitCode.TESTS_FAILED  # a race was asked for
    result.stdout.fnmatch_lines(
        ["SKIPPED * 100.0 GB/s: undecided: it could not race; not raced: there is no v1.0: fetch it"]
    )


@pytest.mark.parametrize("option", ["--against", "--bisect"])
def test_a_commit_that_is_not_there_stops_the_run_before_anything_is_measured(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    without_ranks(monkeypatch)
    pytester.makepyfile(test_it=TESTS)
    commit(pytester.path, {})
    result = pytester.runpytest_inprocess("--gpus=2", f"{option}=nosuch")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: commit 'nosuch' is not in *: run `git fetch --all --tags`, or *"])


def test_a_budget_bounds_the_launch_that_it_began(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    launch = ScriptedArm.launch

    def limited(arm: ScriptedArm, tests: Sequence[str], limit: float) -> Mapping[str, Measured]:
        limits.append(limit)
        return launch(arm, tests, limit)

    monkeypatch.setattr(ScriptedArm, "launch", limited)
    figures(project, b=SUSPECT)
    judged(project, "--race-budget=50")
    assert limits
    assert max(limits) <= 50
    limits.clear()
    figures(project, b=SUSPECT)
    judged(project)
    assert min(limits) > 120  # more than what a rank gets that hangs


def test_a_launch_that_the_budget_ends_is_no_test_that_hangs(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere(monkeypatch)
    figures(project, a=SUSPECT)
    script(project, "present", a=[90e9])
    script(project, "old", a=["gone"])
    ticks = itertools.count(0.0, 10.0)
    monkeypatch.setattr("pytest_gpuperf.features.racing.spending.time.monotonic", lambda: next(ticks))
    result = judged(project, "--race-budget=25", "-rs")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED *undecided: time ran out*"])
    assert not any("a test hangs" in line or "give it more" in line for line in result.outlines)


def test_what_runs_write_is_no_code(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.path / ".gitignore").write_text("*.json\n__pycache__\nlog\nlaunches\n.*\n")
    sha = commit(project.path, {})
    monkeypatch.setattr("pytest_gpuperf.run.current_launch.read_commit", lambda folder: sha)
    recorded(project, "--update-baselines=all", b=STEADY * 2)
    elsewhere(monkeypatch)
    written = ["--gpuperf-json=written.jsonl", "--report=page.html"]
    figures(project, b=SUSPECT)
    script(project, "present", b=RACES)
    judged(project, *written)
    assert launched(project) == ["here b"] * 6
    (project.path / "new.py").touch()
    figures(project, b=SUSPECT)
    script(project, "present", b=RACES)
    judged(project, *written)
    assert launched(project)[2] == f"{sha[:7]} b"
