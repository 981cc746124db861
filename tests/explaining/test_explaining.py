"""``--explain``: which variables are put back, what races what, and what the run says of it."""

import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

import pytest

from pytest_gpuperf.features.explaining.search import Explaining
from pytest_gpuperf.report import results_file
from pytest_gpuperf.run.choosing import Choosing
from pytest_gpuperf.run.current_ranks import CurrentRanks
from pytest_gpuperf.verdicts.explanation import Explained
from tests import scripted_arms
from tests.fake_gpus import without_ranks
from tests.scripted_arms import launched, script
from tests.scripted_figures import STEADY, TESTS, figures, judged
from tests.whole_run import run_pytest, write

COMMIT = "abc1234000000000000000000000000000000000"
SLOW = [80e9]
RECORD = "baselines/2x-nvidia-h200-nv18.json"


@pytest.fixture(scope="module")
def recorded() -> dict[str, str]:
    """The record that all tests begin with, once one of them has made it."""
    return {}


@pytest.fixture
def project(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, eight_gpus: None, recorded: dict[str, str]
) -> pytest.Pytester:
    """Three tests with steady records of ten launches, which nothing races but variables."""
    without_ranks(monkeypatch)
    scripted_arms.install(monkeypatch, pytester.path)
    monkeypatch.setattr("pytest_gpuperf.run.current_launch.read_commit", lambda folder: COMMIT)
    monkeypatch.setattr("pytest_gpuperf.run.current_launch.is_dirty", lambda folder: False)
    monkeypatch.setattr(Choosing, "ask", lambda self, item: {})
    for name in ("NCCL_ALGO", "NCCL_PROTO", "NCCL_MAX_NCHANNELS"):
        monkeypatch.delenv(name, raising=False)
    pytester.makepyfile(test_it=TESTS)
    (pytester.path / "no_race").write_text("git is not installed: install it")
    file = pytester.path / RECORD
    if not recorded:
        record(pytester)
        recorded[RECORD] = file.read_text()
    else:
        file.parent.mkdir()
        file.write_text(recorded[RECORD])
        figures(pytester, a=[100e9], b=[100e9], c=[100e9])
    return pytester


def record(project: pytest.Pytester) -> None:
    figures(project, a=STEADY * 2, b=STEADY * 2, c=STEADY * 2)
    options = ("--gpus=2", "--update-baselines=all", "--launches=10", "--reason=first")
    assert project.runpytest_inprocess(*options).ret == 0
    figures(project, a=[100e9], b=[100e9], c=[100e9])
    launched(project)


def slow(project: pytest.Pytester, **undone: float) -> None:
    """Test b is slow from now on, but with these variables undone as fast as given."""
    figures(project, b=SLOW)
    script(project, "present", b=SLOW)
    for names, value in undone.items():
        script(project, names.replace("__", "+"), b=[value])


def explained(project: pytest.Pytester, *options: str) -> tuple[pytest.RunResult, str]:
    """A judged run with --explain, and what it says of the failure of test b, its lines joined."""
    result = judged(project, "--explain", *options)
    lines = iter(result.outlines)
    first = next(line for line in lines if line.startswith("busbw "))
    return result, "; ".join([first, *(line.strip() for line in takewhile(lambda line: line.startswith("  "), lines))])


def races(project: pytest.Pytester) -> list[str]:
    """What raced what, in order; nothing of the launches that only judged."""
    return list(dict.fromkeys(line for line in launched(project) if not line.startswith(("here", "closed"))))


def test_a_variable_that_makes_a_figure_slower_is_named(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_MAX_NCHANNELS", "12")
    monkeypatch.setattr(Explaining, "note_collected", lambda self: setattr(self, "_start", 100.0))
    slow(project, NCCL_MAX_NCHANNELS=100e9)
    result, line = explained(project)
    result.assert_outcomes(passed=2, failed=1)
    assert line.endswith(
        "; what differs: NCCL_MAX_NCHANNELS not set -> 12; explained by NCCL_MAX_NCHANNELS=12: without it 100.0 GB/s, "
        "as recorded"
    )
    said = [line for line in result.outlines if line.startswith("gpuperf: explain: ")]
    assert said[0] == (
        "gpuperf: explain: 1 metric moved and NCCL_MAX_NCHANNELS differs from the baseline: a race with the baseline's "
        "value takes about 100 s if launches are steady, at most about 100 s"
    )
    assert said[1] == (
        "gpuperf: explain: NCCL_MAX_NCHANNELS as recorded, block 1 of at most 7 (4 launches, about 1 s): "
        "test_it.py::test_b[2ranks]"
    )
    assert "NCCL_MAX_NCHANNELS=12 explains 1 of 1 metric that moved" in result.outlines
    of_judging, *blocks = [line for line in launched(project) if not line.startswith("here")]
    assert of_judging == "closed"
    assert blocks[:4] == ["undo:NCCL_MAX_NCHANNELS b", "present b", "present b", "undo:NCCL_MAX_NCHANNELS b"]
    assert blocks[-1] == "closed"


def test_the_run_lets_go_of_its_gpus_before_the_arms_lease_them(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vacate(ranks: CurrentRanks) -> None:
        with (project.path / "launches").open("a") as log:
            print("vacated", file=log)

    monkeypatch.setattr(CurrentRanks, "vacate", vacate)
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    slow(project, NCCL_ALGO=100e9)
    explained(project)
    lines = launched(project)
    assert lines[lines.index("undo:NCCL_ALGO b") - 1] == "vacated"


def test_a_variable_that_costs_nothing_does_not_explain(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    slow(project, NCCL_ALGO=80e9)
    _, line = explained(project)
    assert line.endswith("; not explained by NCCL_ALGO=Tree: without it 80.00 GB/s as well")


def test_variables_that_cost_nothing_are_not_searched(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.setenv("NCCL_PROTO", "LL")
    slow(project, NCCL_ALGO__NCCL_PROTO=80e9)
    _, line = explained(project)
    assert line.endswith("; not explained by NCCL_ALGO=Tree and NCCL_PROTO=LL: without them 80.00 GB/s as well")
    assert races(project) == ["undo:NCCL_ALGO+NCCL_PROTO b", "present b"]


def test_a_variable_that_is_no_longer_set_is_set_as_recorded(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    record(project)
    monkeypatch.delenv("NCCL_ALGO")
    slow(project, NCCL_ALGO=100e9)
    _, line = explained(project)
    assert line.endswith("; explained by NCCL_ALGO not set: with NCCL_ALGO=Ring 100.0 GB/s, as recorded")


def test_of_several_variables_the_one_that_matters_is_found(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NCCL_ALGO", "NCCL_MAX_NCHANNELS", "NCCL_PROTO"):
        monkeypatch.setenv(name, "1")
    slow(project, NCCL_ALGO__NCCL_MAX_NCHANNELS__NCCL_PROTO=100e9, NCCL_ALGO=80e9, NCCL_ALGO__NCCL_MAX_NCHANNELS=100e9)
    script(project, "NCCL_MAX_NCHANNELS", b=[101e9])
    result, line = explained(project)
    assert line.endswith("; explained by NCCL_MAX_NCHANNELS=1: without it 101.0 GB/s, as recorded")
    assert races(project) == [
        "undo:NCCL_ALGO+NCCL_MAX_NCHANNELS+NCCL_PROTO b",
        "present b",
        "undo:NCCL_ALGO b",
        "undo:NCCL_ALGO+NCCL_MAX_NCHANNELS b",
        "undo:NCCL_MAX_NCHANNELS b",
    ]
    assert any("at most 4 races more of that length will find which of them" in line for line in result.outlines)


def test_two_variables_may_explain_only_together(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.setenv("NCCL_PROTO", "LL")
    slow(project, NCCL_ALGO__NCCL_PROTO=100e9, NCCL_ALGO=90e9, NCCL_PROTO=90e9)
    _, line = explained(project)
    assert line.endswith("; explained by NCCL_ALGO=Tree and NCCL_PROTO=LL: without them 100.0 GB/s, as recorded")


def test_what_goes_only_half_of_the_way_explains_in_part(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    slow(project, NCCL_ALGO=90e9)
    _, line = explained(project)
    assert line.endswith("; partly explained by NCCL_ALGO=Tree: without it 90.00 GB/s, recorded 100.0 GB/s")


def test_a_gain_is_explained_and_passes(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    figures(project, b=[120e9])
    script(project, "present", b=[120e9])
    script(project, "NCCL_ALGO", b=[100e9])
    result = judged(project, "--explain", "--gpuperf-json=results.json")
    result.assert_outcomes(passed=3)
    assert result.ret == 0
    assert "NCCL_ALGO=Tree explains 1 of 1 metric that moved" in result.outlines
    (moved,) = [one for one in results_file.load(project.path / "results.json").verdicts if one.explanation]
    assert moved.explanation is not None
    assert (moved.explanation.found, moved.explanation.value) == (Explained.EXPLAINED, 100e9)
    assert moved.explanation.undone == {"NCCL_ALGO": ("", "Tree")}


def test_figures_that_moved_together_share_the_launches(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    slow(project, NCCL_ALGO=100e9)
    figures(project, a=SLOW)
    script(project, "present", a=SLOW)
    script(project, "NCCL_ALGO", a=SLOW)
    result, _ = explained(project)
    assert "  explained by NCCL_ALGO=Tree: without it 100.0 GB/s, as recorded" in result.outlines
    assert "  not explained by NCCL_ALGO=Tree: without it 80.00 GB/s as well" in result.outlines
    assert "NCCL_ALGO=Tree explains 1 of 2 metrics that moved" in result.outlines
    assert races(project)[:2] == ["undo:NCCL_ALGO ab", "present ab"]


def test_what_must_stay_is_named_and_not_tried(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    slow(project)
    _, line = explained(project)
    assert line.endswith(
        "; not explained: no variable that can be put back differs from the baseline; not tried: NCCL_NVLS_ENABLE, "
        "because it may keep NVLink multicast off on purpose, and on shared machines that is a policy"
    )
    assert races(project) == []


def test_a_variable_that_the_project_sets_itself_is_not_undone(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    slow(project, NCCL_ALGO=100e9)
    monkeypatch.setattr(scripted_arms.ScriptedOpener, "present", with_its_own_algorithm)
    _, line = explained(project)
    assert line.endswith(
        "; not explained, since nothing was tried: undo:NCCL_ALGO had NCCL_ALGO=Tree, expected no NCCL_ALGO: a "
        "conftest.py or a plugin sets it, so undo it there and run the tests again"
    )


def with_its_own_algorithm(
    opener: scripted_arms.ScriptedOpener, python: str | None = None, variables: Mapping[str, str] | None = None
) -> scripted_arms.ScriptedArm:
    names = "+".join(variables or {})
    return scripted_arms.ScriptedArm(opener._folder, f"undo:{names}", names or "present", {"NCCL_ALGO": "Tree"})


@pytest.mark.parametrize(
    ("figure", "why"),
    [
        (
            "it failed in its call: NCCL",
            "the test came to nothing in undo:NCCL_ALGO: it failed in its call: NCCL",
        ),
        ("other", "the test checked no busbw in undo:NCCL_ALGO: let it check the same in each launch"),
        ("gone", "the old code took more than 5 s: give it more"),
    ],
)
def test_what_does_not_run_with_the_record_s_variables_says_so(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, figure: str, why: str
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    slow(project)
    script(project, "NCCL_ALGO", b=[figure])
    _, line = explained(project)
    assert f"; not explained, since nothing was tried: {why}" in line


def test_a_search_that_fails_leaves_what_was_found(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.setenv("NCCL_PROTO", "LL128")
    slow(project, NCCL_ALGO__NCCL_PROTO=100e9)
    script(project, "NCCL_ALGO", b=["gone"])
    _, line = explained(project)
    assert line.endswith(
        "explained by NCCL_ALGO=Tree and NCCL_PROTO=LL128: without them 100.0 GB/s, as recorded; which of them is "
        "open: the old code took more than 5 s: give it more"
    )


def test_a_budget_ends_the_search_for_a_cause(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    slow(project, NCCL_ALGO=100e9)
    affords = iter([*[True] * 26, *[False] * 99])  # those that judge may launch
    monkeypatch.setattr("pytest_gpuperf.features.racing.spending.Spending.affords", lambda *_: next(affords))
    monkeypatch.setattr("pytest_gpuperf.features.racing.racing.Racing._affords", lambda *_: True)
    _, line = explained(project)
    assert "explained by NCCL_ALGO=Tree" in line
    affords = iter([False] * 99)
    slow(project, NCCL_ALGO=100e9)
    _, line = explained(project)
    assert line.endswith("; not explained, since nothing was tried: time ran out: raise --race-budget")


def test_without_the_option_nothing_is_undone(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    slow(project, NCCL_ALGO=100e9)
    result = judged(project)
    assert "explain: " not in result.stdout.str()
    assert "explained" not in result.stdout.str()
    assert races(project) == []


def test_a_quiet_run_explains_nothing(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    result = judged(project, "--explain")
    assert result.ret == 0
    assert "explain: " not in result.stdout.str()
    assert "explained" not in result.stdout.str()
    assert launched(project) == []


def test_what_nccl_chose_is_recorded_and_compared(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {"all_reduce 67108864": "RING, SIMPLE, 24 channels", "transport": "P2P/CUMEM"}
    monkeypatch.setattr(Choosing, "ask", lambda self, item: chosen)
    record(project)
    stored = (project.path / RECORD).read_text()
    assert stored.count('"all_reduce 67108864": "RING, SIMPLE, 24 channels"') == 10
    slow(project)
    fewer = {**chosen, "all_reduce 67108864": "RING, SIMPLE, 12 channels"}
    monkeypatch.setattr(Choosing, "ask", lambda self, item: fewer)
    _, line = explained(project)
    assert "; what NCCL chose: all_reduce of 64 MiB: 12 channels, recorded 24 channels; not explained: " in line


def test_the_option_needs_records(project: pytest.Pytester) -> None:
    for options, message in (
        (
            ["--update-baselines", "--reason=x"],
            "recorded, and --update-baselines judges none by a baseline: drop one of them",
        ),
        (["--smoke"], "recorded, and --smoke judges none by a baseline: drop one of them"),
        (["--against=main"], "and --against, --against-python or --bisect judges none by a baseline: drop one of them"),
        (["-n2"], "--explain races all metrics that moved together: drop -n"),
    ):
        result = project.runpytest_inprocess("--gpus=2", "--explain", *options)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"*{message}"])


PROGRAMS = """
import os, time, pytest

def sleeping(ctx):
    seconds = 0.008 * float(os.environ.get("NCCL_SLOWER", 1))
    return lambda: time.sleep(seconds)

@pytest.mark.ranks(1)
def test_sleep(perf):
    perf.check(time=perf.configured(samples=10, budget=0.1).measure(sleeping).time)
"""
ON_GPUS = """
import pytest
from tests import fake_gpus
from pytest_gpuperf.run.rank_supply import RankSupply
patch = pytest.MonkeyPatch()
fake_gpus.install(patch, visible=1)
patch.setattr(RankSupply, "has_nccl", lambda *_: True)  # gloo's ranks are asked, and their log is empty
"""


def test_a_real_variable_that_makes_a_real_program_sleep_longer_is_proved(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"conftest.py": ON_GPUS, "test_it.py": PROGRAMS, "pytest.ini": "[pytest]\ngpuperf_minimum_slowdown = 0.5\n"},
    )
    recording = run_pytest(tmp_path, "--gpus=1", "--update-baselines", "--reason=first")
    assert recording.result.ret == 0
    not_known = "gpuperf: what NCCL chose is not known: the log is of an NCCL whose version neither its log nor torch "
    assert recording.text.count(not_known) == 1, recording.text
    run = run_pytest(tmp_path, "--gpus=1", "--explain", env={"NCCL_SLOWER": "3"})
    assert run.outcomes == {"test_sleep[1rank]": "FAILED"}, run.text
    assert run.text.count(not_known) == 1
    assert "NCCL_SLOWER=3 explains 1 of 1 metric that moved" in run.section("gpuperf"), run.text
    assert re.search(r"\n  explained by NCCL_SLOWER=3: without it \d+\.\d+ ms, ", run.text), run.text
