"""Perf tests that are expected to fail: what is counted as the expected failure, and what is not."""

from __future__ import annotations

import pytest

from tests.fake_gpus import without_ranks
from tests.scripted_figures import STEADY, TESTS, figures, judged

pytestmark = pytest.mark.usefixtures("eight_gpus")


def projected(pytester: pytest.Pytester, mark: str) -> None:
    """Three tests with steady baselines, one of which is marked by now."""
    pytester.makepyfile(
        conftest=f"""
import pytest
from pathlib import Path

def pytest_collection_modifyitems(items):
    for item in items:
        if "test_b" in item.name and (Path(__file__).parent / "marked").exists():
            item.add_marker({mark})
""",
        test_it=TESTS,
    )
    figures(pytester, a=STEADY * 2, b=STEADY * 2, c=STEADY * 2)
    options = ("--gpus=2", "--update-baselines", "--launches=10", "--reason=first")
    assert pytester.runpytest_inprocess(*options).ret == 0
    (pytester.path / "marked").touch()
    figures(pytester, a=[100e9], b=[100e9], c=[100e9])


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """With a test that is expected to fail."""
    without_ranks(monkeypatch)
    projected(pytester, "pytest.mark.xfail(reason='known')")
    return pytester


def has_a_line(result: pytest.RunResult, verdict: str) -> bool:
    return any(line.startswith(f"{verdict} ") and "test_b[2ranks] busbw" in line for line in result.outlines)


def test_a_regression_is_the_failure_that_was_expected(project: pytest.Pytester) -> None:
    figures(project, b=[80e9, 94e9, 93e9, 95e9, 94e9, 94e9])
    result = judged(project)
    result.assert_outcomes(passed=2, xfailed=1)
    assert result.ret == 0
    assert has_a_line(result, "regressed")


def test_a_strict_one_has_failed_before_anything_was_decided_and_its_figures_are_told(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_ranks(monkeypatch)
    projected(pytester, "pytest.mark.xfail(reason='known', strict=True)")
    figures(pytester, b=[80e9])
    result = judged(pytester)
    result.assert_outcomes(passed=2, failed=1)
    assert has_a_line(result, "suspect")


def test_a_fresh_launch_that_fails_is_not_the_failure_that_was_expected(project: pytest.Pytester) -> None:
    figures(project, b=[80e9, None])
    result = judged(project)
    result.assert_outcomes(passed=2, failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_what_is_not_decided_is_skipped(project: pytest.Pytester) -> None:
    figures(project, b=[80e9, "interrupt"])
    result = project.runpytest_inprocess("--gpus=2", "-v", no_reraise_ctrlc=True)
    result.assert_outcomes(passed=2, skipped=1)
