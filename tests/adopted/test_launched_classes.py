"""Classes of DeepSpeed's shape, and of pytest's own that expect torchrun, on our ranks."""

from pathlib import Path

import pytest

from tests.adopted.harness_shapes import LAUNCHED, LAUNCHING, LAUNCHING_CONFTEST, LIBRARY, TORCHRUN
from tests.whole_run import WholeRun, run_pytest, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("launched")


@pytest.fixture(scope="module")
def run(folder: Path) -> WholeRun:
    files = {
        "deepspeed/__init__.py": "",
        "deepspeed/state.py": LIBRARY,
        "launching.py": LAUNCHING,
        "conftest.py": LAUNCHING_CONFTEST,
        "test_launched.py": LAUNCHED,
        "test_torchrun.py": TORCHRUN,
        "pytest.ini": "[pytest]\nfilterwarnings = error::pytest_gpuperf.LeakWarning\n",
    }
    return run_pytest(write(folder, files), "--adopt-classes")


def test_tests_of_both_kinds_pass_fail_and_skip(run: WholeRun) -> None:
    assert run.outcomes == {
        "TestWorlds::test_sums_in_both_worlds[Kind.SUM]": "PASSED",
        "TestWorlds::test_after_a_fixture_of_another_world": "PASSED",
        "TestWorlds::test_skips": "SKIPPED",
        "TestWorlds::test_fails_on_one_rank": "FAILED",
        "TestWorlds::test_leaves_before_its_assertions": "FAILED",
        "TestOpensItsGroup::test_by_the_environment": "PASSED",
        "TestOpensItsGroup::test_skips": "SKIPPED",
        "TestLibrary::test_one": "PASSED",
        "TestLibrary::test_other": "PASSED",
        "TestWithoutEnvironment::test_has_no_rank": "PASSED",
        "TestUnderTorchrun::test_sums[1]": "PASSED",
        "TestUnderTorchrun::test_sums[2]": "PASSED",
        "TestUnderTorchrun::test_fails_on_one_rank": "FAILED",
        "TestUnderTorchrun::test_leaves_before_its_assertions": "FAILED",
        **{
            f"{name}::{test}": "ERROR"
            for name in ("TestTwoWorlds", "TestNoWorld")
            for test in (
                "test_sums[1]",
                "test_sums[2]",
                "test_fails_on_one_rank",
                "test_leaves_before_its_assertions",
            )
        },
    }, run.text


@pytest.mark.parametrize("name", ["TestWorlds", "TestUnderTorchrun"])
def test_an_exit_with_0_is_a_failure(run: WholeRun, name: str) -> None:
    report = run.report(f"{name}::test_leaves_before_its_assertions")
    assert "the test left its process before its end: rank 0 by sys.exit(0), rank 1 by sys.exit(0); expected" in report


@pytest.mark.parametrize("name", ["TestWorlds", "TestUnderTorchrun"])
def test_a_failure_names_its_rank_and_what_the_other_waited_for(run: WholeRun, name: str) -> None:
    report = run.report(f"{name}::test_fails_on_one_rank")
    assert f"raised on rank 1 of 2 (gloo) in {name}.test_fails_on_one_rank" in report
    assert "rank 1 never issued barrier" in report


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("TestTwoWorlds", "TestTwoWorlds: on_ranks takes one world size, got (2, 3)"),
        ("TestNoWorld", "A plain class of pytest's needs a world size: @on_ranks(2)"),
    ],
)
def test_a_plain_class_has_one_world_size(run: WholeRun, name: str, expected: str) -> None:
    assert expected in run.report(f"{name}::test_fails_on_one_rank")


def test_both_worlds_of_a_test_skip_for_their_reason(run: WholeRun) -> None:
    assert sum(line.startswith("SKIPPED [") and line.endswith(": of the test") for line in run.result.outlines) >= 1


def test_a_known_library_is_put_back_and_the_ranks_stay(run: WholeRun, folder: Path) -> None:
    assert run.outcomes["TestLibrary::test_one"] == run.outcomes["TestLibrary::test_other"] == "PASSED"
    pids = {name: [(folder / f"{name}_{rank}").read_text() for rank in (0, 1)] for name in ("one", "other")}
    assert pids["one"] == pids["other"]
