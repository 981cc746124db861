"""Classes of torch's harnesses on our ranks, in whole runs of pytest."""

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.adopted.harness_shapes import CONTINUOUS, PROCESSES
from tests.whole_run import WholeRun, run_pytest, write

pytest.importorskip("expecttest")  # without which torch's harnesses cannot be imported
pytest.importorskip("numpy")

INI = "[pytest]\nfilterwarnings = error::pytest_gpuperf.LeakWarning\ngpuperf_grace = 1\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adopted")


@pytest.fixture(scope="module")
def run(folder: Path) -> WholeRun:
    return run_pytest(write(folder, {"test_it.py": PROCESSES, "pytest.ini": INI}), "--junitxml=junit.xml")


@pytest.fixture(scope="module")
def unmarked(tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    """A file without a decorator, under the option."""
    folder = tmp_path_factory.mktemp("unmarked")
    return run_pytest(write(folder, {"test_it.py": CONTINUOUS, "pytest.ini": INI}), "--adopt-classes=file")


def told(folder: Path, name: str) -> list[Any]:
    return [ast.literal_eval((folder / f"{name}_{rank}").read_text()) for rank in (0, 1)]


def test_tests_pass_fail_and_skip_under_the_ids_of_unittest(run: WholeRun) -> None:
    outcomes = {name: outcome for name, outcome in run.outcomes.items() if name.startswith("GlooCase::")}
    assert outcomes == {
        f"GlooCase::{name}": outcome
        for name, outcome in {
            "test_all_reduce": "PASSED",
            "test_all_reduce_again": "PASSED",
            "test_an_exit_is_seen_by_the_other_rank": "PASSED",
            "test_counts_turn_0": "PASSED",
            "test_counts_turn_1": "PASSED",
            "test_draws": "PASSED",
            "test_fails_as_expected": "XFAIL",
            "test_has_the_name_and_the_parent_of_a_process": "PASSED",
            "test_leaves_at_once": "FAILED",
            "test_leaves_before_its_assertions": "FAILED",
            "test_leaves_by_its_last_statement": "PASSED",
            "test_leaves_with_code_3": "FAILED",
            "test_leaves_within_a_block": "FAILED",
            "test_needs_gpus": "SKIPPED",
            "test_one_rank_leaves_before_its_assertions": "FAILED",
            "test_one_value_fails_k_1": "PASSED",
            "test_one_value_fails_k_2": "FAILED",
            "test_raises_on_one_rank": "FAILED",
            "test_sends_an_object_of_this_module": "PASSED",
            "test_skips": "SKIPPED",
            "test_spawns": "FAILED",
            "test_subtest_that_fails_on_one_rank": "FAILED",
            "test_subtests_that_fail_on_all_ranks": "FAILED",
        }.items()
    }, run.text


def test_tests_share_warm_ranks_that_have_the_environment_of_setup(run: WholeRun, folder: Path) -> None:
    assert all(seen for _, seen in told(folder, "test_all_reduce") + told(folder, "test_all_reduce_again"))
    pids = {pid for pid, _ in told(folder, "test_all_reduce") + told(folder, "test_all_reduce_again")}
    assert len(pids) == 2


def test_an_exit_closes_its_connections(run: WholeRun, folder: Path) -> None:
    assert float((folder / "test_an_exit_is_seen_by_the_other_rank_took").read_text()) < 30


def test_ranks_draw_alike(run: WholeRun, folder: Path) -> None:
    first, second = told(folder, "test_draws")
    assert first == second


def test_a_class_with_processes_of_its_own_gets_them_for_each_test(run: WholeRun, folder: Path) -> None:
    assert len({*told(folder, "test_pid_of_one"), *told(folder, "test_pid_of_another")}) == 4


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("GlooCase::test_raises_on_one_rank", "ValueError: on rank 1"),
        ("GlooCase::test_raises_on_one_rank", "raised on rank 1 of 2 (gloo) in GlooCase.test_raises_on_one_rank"),
        ("GlooCase::test_raises_on_one_rank", "rank 1 never issued barrier"),
        ("GlooCase::test_raises_on_one_rank", 'pytest "test_it.py::GlooCase::test_raises_on_one_rank"'),
        (
            "GlooCase::test_leaves_with_code_3",
            "the test left its process before its end: rank 1 by sys.exit(3); expected that it "
            "returns, raises or skips on every rank: replace sys.exit, or list the test in skip_return_code_checks if "
            "its ranks are meant to leave",
        ),
        ("GlooCase::test_leaves_before_its_assertions", "end: rank 0 by sys.exit(0), rank 1 by sys.exit(0); expected"),
        ("GlooCase::test_leaves_within_a_block", "end: rank 0 by sys.exit(0), rank 1 by sys.exit(0); expected"),
        ("GlooCase::test_one_rank_leaves_before_its_assertions", "before its end: rank 1 by sys.exit(0); expected"),
        (
            "Codes::test_another_end",
            "the test ended on rank 0 with code 0; expected -6 by special_return_code_checks: correct the test, or its",
        ),
        ("GlooCase::test_leaves_at_once", "exited with code 0 before it returned"),
        ("GlooCase::test_spawns", "calls _spawn_processes on a rank, which would start a whole world of processes"),
        ("GlooCase::test_subtests_that_fail_on_all_ranks", "in subtest (number=1)"),
        ("GlooCase::test_subtests_that_fail_on_all_ranks", "subtest (number=3) failed too"),
        ("GlooCase::test_subtests_that_fail_on_all_ranks", "2 of 4 subtests failed"),
        ("GlooCase::test_subtest_that_fails_on_one_rank", "in subtest (number=1)"),
        ("Codes::test_any_end_and_a_failure_of_the_other", "rank 0 raised AssertionError: Scalars are not equal!"),
        (
            "Codes::test_any_end_and_a_failure_of_the_other",
            "the test expects that ranks end, and not this: another rank",
        ),
        ("First::test_any_end", "left behind, in ranks that were replaced: ranks 0, 1: attributes of modules: test_it"),
        ("Derived::test_set_up_fails_on_one_rank", "RuntimeError: set up on rank 1"),
        ("NoWorld::test_never", "the class's world_size is -1: it must be 1 or more"),
        (
            "TwoWorlds::test_draws",
            "on_ranks was given world sizes (3,), and a class of MultiProcessTestCase has its",
        ),
        ("Marked::test_pid_of_one", "drop the marker, and give its keywords to on_ranks"),
        ("BadKeyword::test_never", "on_ranks takes isolation='group', isolation='file' or isolation='process', got"),
        ("Mixed::test_it", "Mixed derives from MultiProcessTestCase and MultiProcContinuousTest, which start ranks"),
        ("Plain::test_it", "Plain: on_ranks adopts classes that start processes as torch's MultiProcessTestCase"),
    ],
)
def test_a_failure_says_what_happened(run: WholeRun, name: str, expected: str) -> None:
    assert run.outcomes[name] in ("FAILED", "ERROR")
    assert expected in run.report(name)


NO_RANKS = "the class's world_size is 0 where there are no GPUs: there is no rank to run the test"


@pytest.mark.parametrize("reason", ["of the test", "Need at least 2 CUDA devices", NO_RANKS])
def test_a_skip_has_its_reason(run: WholeRun, reason: str) -> None:
    assert any(line.startswith("SKIPPED") and line.endswith(reason) for line in run.result.outlines)


def test_expected_exit_codes_pass(run: WholeRun) -> None:
    ends = ("test_any_end", "test_expected_end", "test_an_expected_exit_with_0")
    assert {run.outcomes[f"Codes::{name}"] for name in ends} == {"PASSED"}


def test_after_a_death_that_a_test_expects_the_other_ranks_go_on(run: WholeRun, folder: Path) -> None:
    assert run.outcomes["Codes::test_any_end_and_work_of_the_other"] == "PASSED"
    assert (folder / "test_any_end_and_work_of_the_other_0").read_text() == repr("came to its end")


def test_what_subclasses_of_the_harness_do_is_done(run: WholeRun) -> None:
    assert run.outcomes["Derived::test_creates_its_group"] == "PASSED", run.text


def test_junit_has_rank_and_cause_of_a_failure(run: WholeRun, folder: Path) -> None:
    assert 'value="ValueError: on rank 1"' in (folder / "junit.xml").read_text()


def test_with_the_option_a_file_runs_as_it_is(unmarked: WholeRun) -> None:
    assert unmarked.outcomes == {
        "InTurn::test_all_reduce": "PASSED",
        "InTurn::test_fails": "FAILED",
        "InTurn::test_has_the_name_of_a_process": "PASSED",
        "InTurn::test_leaves_before_its_assertions": "FAILED",
        "InTurn::test_runs_after_the_failure": "PASSED",
        "OnMesh::test_shards": "PASSED",
        "Sharded::test_needs_gpus": "SKIPPED",
        "Threads::test_stays_on_threads": "PASSED",
    }, unmarked.text
    assert "raised on rank 1 of 2 (gloo) in InTurn.test_fails" in unmarked.report("InTurn::test_fails")


def test_an_unknown_isolation_is_a_usage_error(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--adopt-classes=world")
    assert result.ret is pytest.ExitCode.USAGE_ERROR
    assert "--adopt-classes=group/--adopt-classes=file/--adopt-classes=process" in result.stderr.str()
