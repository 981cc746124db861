"""``--require-gpus``: what would be skipped for want of GPUs fails."""

import re

import pytest

from tests.fake_gpus import without_ranks
from tests.options.test_option_gpus import TESTS, usage_error

CHECKED = TESTS.replace(
    "def test_speed(perf): pass",
    "def test_speed(perf): perf.check(time=__import__('pytest_gpuperf').Metric(1.0, 's', 'lower'))",
)


@pytest.fixture(autouse=True)
def _no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    without_ranks(monkeypatch)


def test_it_goes_with_gpus(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--require-gpus")
    assert usage_error(result) == ("--require-gpus needs GPUs, and this run uses none: add --gpus N")


@pytest.mark.usefixtures("no_gpus")
def test_a_machine_without_gpus_is_refused(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--require-gpus", "--gpus=auto")
    assert usage_error(result) == "--require-gpus: no GPU is visible"


@pytest.mark.usefixtures("eight_gpus")
def test_what_needs_more_gpus_than_are_in_use_fails_with_the_reason(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=CHECKED)
    result = pytester.runpytest_inprocess("--require-gpus", "--gpus=2", "--smoke")
    result.assert_outcomes(passed=5, errors=2)
    reason = "--require-gpus: needs 4 GPUs, 2 in use (--gpus)"
    assert result.outlines.count(reason) == 2
    for test in ("test_ranks", "test_speed"):
        result.stdout.re_match_lines([rf"_+ ERROR at setup of {test}\[4ranks\] _+", re.escape(reason)])
    assert "did not run" not in result.stdout.str()


@pytest.mark.usefixtures("eight_gpus")
def test_what_has_its_gpus_runs_as_without(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=CHECKED)
    pytester.runpytest_inprocess("--require-gpus", "--gpus=4", "--smoke").assert_outcomes(passed=7)
