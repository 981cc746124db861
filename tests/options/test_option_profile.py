"""``--profile``: where it writes, and what it does not go with."""

from pathlib import Path

import pytest

from pytest_gpuperf.features.profiling.plugin import FOLDER, find_folder
from tests.fake_gpus import without_ranks
from tests.options.test_option_gpus import usage_error


@pytest.fixture(autouse=True)
def _no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    without_ranks(monkeypatch)


def folder(pytester: pytest.Pytester, *options: str) -> Path | None:
    return find_folder(pytester.parseconfig(*options))


def test_nothing_is_profiled_without_it(pytester: pytest.Pytester) -> None:
    assert folder(pytester) is None


def test_the_folder_is_relative_to_where_pytest_was_called(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    deeper = pytester.mkdir("deeper")
    monkeypatch.chdir(deeper)
    assert folder(pytester, "--profile") == deeper / FOLDER
    assert folder(pytester, "--profile=traces/new") == deeper / "traces" / "new"
    assert folder(pytester, f"--profile={pytester.path / 'absolute'}") == pytester.path / "absolute"


def test_it_does_not_take_a_path_of_tests_for_its_folder(pytester: pytest.Pytester) -> None:
    pytester.mkdir("suites")
    result = pytester.runpytest_inprocess("--smoke", "--profile", "suites")
    assert usage_error(result) == (
        "--profile took 'suites' for the folder of its traces: write --profile=gpuperf-profiles suites, or "
        "--profile=suites if you mean the folder"
    )


def test_it_refuses_an_empty_name(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--profile=")
    assert usage_error(result) == (
        "--profile= names no folder: write --profile=gpuperf-profiles, or --profile at the end"
    )


@pytest.mark.usefixtures("eight_gpus")
def test_it_excludes_a_recording(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--gpus=2", "--update-baselines", "--reason=x", "--profile")
    assert usage_error(result) == (
        "--profile starts fresh ranks after each test, and --update-baselines records launches in which all tests "
        "share their ranks: drop one of them"
    )


def test_a_folder_that_cannot_be_written_ends_the_run_before_anything_is_measured(pytester: pytest.Pytester) -> None:
    (pytester.path / "file").write_text("in the way")
    result = pytester.runpytest_inprocess("--smoke", "--profile=file/traces")
    path = str(pytester.path / "file" / "traces")
    assert usage_error(result) == (
        f"--profile cannot write traces to {path!r}: Not a directory: name a folder that can be written, with "
        "--profile=DIR"
    )


def test_a_run_that_runs_no_tests_makes_no_folder(pytester: pytest.Pytester) -> None:
    pytester.runpytest_inprocess("--profile=traces", "--collect-only")
    assert not (pytester.path / "traces").exists()
