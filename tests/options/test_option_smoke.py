"""``--smoke``: perf tests are tried without GPUs, and nothing is recorded."""

import pytest

from tests.fake_gpus import without_ranks
from tests.options.test_option_gpus import usage_error

TEST = """
import pytest
from pytest_gpuperf import Metric
@pytest.mark.perf
@pytest.mark.ranks(2)
def test_speed(perf):
    assert perf.smoke
    assert perf.sized(1 << 30, smoke=1 << 10) == 1 << 10
    perf.check(busbw=Metric(9e99, "B/s", "higher", limit=450e9))
"""


@pytest.fixture(autouse=True)
def _no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    without_ranks(monkeypatch)


def test_it_excludes_a_recording(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--smoke", "--update-baselines", "--gpus=1")
    assert usage_error(result) == "--smoke measures nothing that --update-baselines could record: drop one of them"


def test_it_excludes_benchmarks_alone(pytester: pytest.Pytester) -> None:
    """pytest-benchmark would skip every perf test, and the run be green."""
    result = pytester.runpytest_inprocess("--smoke", "--benchmark-only")
    assert usage_error(result) == (
        "--benchmark-only skips all that is no benchmark, as perf tests under --smoke: drop one of them"
    )


def test_perf_tests_run_unjudged_without_gpus(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TEST)
    result = pytester.runpytest_inprocess("--smoke")
    result.assert_outcomes(passed=1)
    assert "1 perf test ran and handed over 1 metric; --smoke judges none" in result.outlines


@pytest.mark.usefixtures("eight_gpus")
def test_perf_tests_run_unjudged_with_gpus_and_without_baselines(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TEST)
    folder = pytester.mkdir("baselines")
    (folder / "2x-nvidia-h200-nv18.json").write_text("broken")
    result = pytester.runpytest_inprocess("--smoke", "--gpus=2")
    result.assert_outcomes(passed=1)
    assert "1 perf test ran and handed over 1 metric; --smoke judges none" in result.outlines


def test_without_it_sizes_are_full(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_gpuperf.run.selection.find_skip_reason", lambda item, capacity, unmeasured: None)
    pytester.makepyfile(
        """
        import pytest
        from pytest_gpuperf import Metric
        @pytest.mark.ranks(2)
        def test_speed(perf):
            assert not perf.smoke
            assert perf.sized(8, smoke=2) == 8
            assert perf.world_size == 2
            perf.check(time=Metric(1.0, "s", "lower"))
        """
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


def test_a_perf_test_without_the_fixture_is_no_pass(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.perf
        def test_it(): pass
        """
    )
    result = pytester.runpytest_inprocess("--smoke")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["the perf test checked no metric, so nothing was judged: hand what it *"])
