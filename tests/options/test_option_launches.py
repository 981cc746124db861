"""``--launches``: how many launches a recording has, and in which order tests run in them."""

from unittest import mock

import pytest

from pytest_gpuperf.baselines.json_files import load
from pytest_gpuperf.ranks.failures import LaunchError
from pytest_gpuperf.run.current_ranks import CurrentRanks
from tests.fake_gpus import without_ranks
from tests.options.test_option_gpus import usage_error
from tests.options.test_option_update_baselines import KEY, TEST
from tests.scripted_figures import TESTS, figures

pytestmark = pytest.mark.usefixtures("eight_gpus")


def test_it_is_of_a_recording_only(pytester: pytest.Pytester) -> None:
    message = usage_error(pytester.runpytest_inprocess("--gpus=2", "--launches=3"))
    assert message == "--launches says how many launches to record: add --update-baselines"


@pytest.mark.parametrize("value", [0, -3])
def test_less_than_one_is_refused(pytester: pytest.Pytester, value: int) -> None:
    message = usage_error(pytester.runpytest_inprocess("--gpus=2", "--update-baselines", f"--launches={value}"))
    assert message == f"--launches must be 1 or more, got {value}"


@pytest.mark.parametrize("mode", ["", "=new", "=all"])
def test_too_few_for_a_baseline_are_refused(pytester: pytest.Pytester, mode: str) -> None:
    message = usage_error(pytester.runpytest_inprocess("--gpus=2", f"--update-baselines{mode}", "--launches=4"))
    assert message == (
        "--launches must be 5 or more for a baseline, got 4; fewer can be added to one with --update-baselines=append"
    )


def test_anything_but_a_number_is_refused(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--gpus=2", "--update-baselines", "--reason=x", "--launches=many")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*argument --launches: invalid int value: 'many'"])


@pytest.mark.parametrize(
    ("options", "launches"), [((), 5), (("--launches=6",), 6), (("--update-baselines=append", "--launches=1"), 1)]
)
def test_each_launch_runs_all_perf_tests_before_the_next(
    pytester: pytest.Pytester, options: tuple[str, ...], launches: int
) -> None:
    pytester.makepyfile(
        """
        import pytest
        pytestmark = [pytest.mark.perf, pytest.mark.ranks(2)]
        def test_a(perf): pass
        def test_b(perf): pass
        """
    )
    result = pytester.runpytest_inprocess(
        "--gpus=2", "--update-baselines", "--reason=x", "--collect-only", "-q", *options
    )
    names = [line.partition("::")[2] for line in result.outlines if "::" in line]
    suffixes = ["", *(f"#{number}" for number in range(2, launches + 1))]
    assert names == [f"{test}{suffix}[2ranks]" for suffix in suffixes for test in ("test_a", "test_b")]


def test_other_tests_run_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(): pass")
    pytester.runpytest_inprocess("--gpus=2", "--update-baselines", "--reason=x").assert_outcomes(passed=1)


def test_it_is_kept_in_the_file(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    without_ranks(monkeypatch)
    pytester.makepyfile(test_it=TEST)
    (pytester.path / "figures.txt").write_text("3e11")
    pytester.runpytest_inprocess("--gpus=2", "--update-baselines", "--reason=x", "--launches=6").assert_outcomes(
        passed=6
    )
    stored = load(pytester.path / "baselines" / f"{KEY}.json", KEY)
    assert stored is not None
    assert (stored.updates[0].launches, len(stored.launches)) == (6, 6)


def test_each_launch_has_a_fresh_instance_of_its_class(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_ranks(monkeypatch)
    pytester.makepyfile(
        """
        import pytest
        from pytest_gpuperf import Metric
        @pytest.mark.perf
        @pytest.mark.ranks(2)
        class TestIt:
            def test_speed(self, perf):
                assert not hasattr(self, "measured")
                self.measured = True
                perf.check(time=Metric(1.0, "s", "lower"))
        """
    )
    pytester.runpytest_inprocess("--gpus=2", "--update-baselines", "--reason=x").assert_outcomes(passed=5)


def test_a_launch_that_could_not_begin_begins_with_the_next_test(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_ranks(monkeypatch)
    versions = {"torch": "2.13.0"}
    software = mock.Mock(side_effect=[versions, LaunchError("rank 0 ended while it started"), *[versions] * 4])
    monkeypatch.setattr(CurrentRanks, "_read_software", software)
    pytester.makepyfile(test_it=TESTS)
    figures(pytester, a=[1e9], b=[1e9], c=[1e9])
    result = pytester.runpytest_inprocess("--gpus=2", "--update-baselines", "--reason=x")
    result.assert_outcomes(passed=14, errors=1)
    baselines = load(pytester.path / "baselines" / f"{KEY}.json", KEY)
    assert baselines is not None
    assert sorted(baselines.tests) == ["test_it.py::test_b[2ranks]", "test_it.py::test_c[2ranks]"]
    for test in baselines.tests.values():
        assert len({figure.launch for figure in test.metrics["busbw"].launches}) == 5
