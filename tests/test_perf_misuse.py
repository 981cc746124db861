"""Figures that nobody would judge are refused: of a perf fixture that came late, and those handed over late."""

import pytest

from tests.fake_gpus import without_ranks


@pytest.fixture(autouse=True)
def _no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    without_ranks(monkeypatch)


def test_a_perf_fixture_that_nobody_knew_of_at_collection_is_refused(pytester: pytest.Pytester) -> None:
    """Its test would be no perf test: not judged, not measured alone."""
    pytester.makepyfile(
        test_it="""
import pytest

@pytest.mark.ranks(2)
def test_late(ranks, request):
    request.getfixturevalue("perf")

@pytest.mark.perf
@pytest.mark.ranks(2)
def test_marked(ranks, request):
    from pytest_gpuperf import Metric
    request.getfixturevalue("perf").check(time=Metric(1.0, "s", "lower"))
"""
    )
    result = pytester.runpytest_inprocess("--smoke")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["perf must be among the arguments of the test or of its fixtures, or the test be marked perf: it is known *"]
    )


@pytest.mark.parametrize("verb", ["check", "show"])
def test_a_figure_that_comes_after_the_body_is_refused(pytester: pytest.Pytester, verb: str) -> None:
    pytester.makepyfile(
        test_it=f"""
import pytest
from pytest_gpuperf import Metric

@pytest.fixture
def late(perf):
    yield
    perf.{verb}(late=Metric(1.0, "s", "lower"))

@pytest.mark.ranks(2)
def test_speed(perf, late):
    perf.check(time=Metric(1.0, "s", "lower"))
"""
    )
    result = pytester.runpytest_inprocess("--smoke")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            f"E *RuntimeError: {verb} got late after the test's body had ended and its figures were judged: call "
            f"{verb} in the body"
        ]
    )


def test_a_name_that_cannot_be_printed_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
import pytest
from pytest_gpuperf import Metric

@pytest.mark.ranks(2)
def test_speed(perf):
    perf.check(**{"two\\nlines": Metric(1.0, "s", "lower")})
"""
    )
    result = pytester.runpytest_inprocess("--smoke")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E *ValueError: metric name 'two*lines' holds what cannot be printed: use letters, digits and _"]
    )
