"""Figures that have a baseline and that their test checks no more."""

import json
from collections.abc import Callable

import pytest

from pytest_gpuperf.report.results_file import Unchecked, load
from tests import fake_gpus
from tests.run.test_judged_run import CONFTEST
from tests.whole_run import WholeRun, run_pytest, write

TESTS = """
from pathlib import Path
import pytest
from pytest_gpuperf import Metric

@pytest.mark.perf
@pytest.mark.ranks(2)
def test_a(perf):
    perf.check(time=Metric(1.0 if "energy" in told() else 2.0, "s", "lower"))
    for name in told():
        perf.check(**{name: Metric(2.0, "J", "lower")})

def told():
    return (Path(__file__).parent / "told").read_text().split()
"""
LINE = "1 metric with a baseline was not checked: test_it.py::test_a[2ranks] energy"


@pytest.fixture
def recorded(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A test with baselines of its time, its energy and its memory."""
    fake_gpus.install(monkeypatch, visible=2)
    fake_gpus.without_ranks(monkeypatch)
    write(pytester.path, {"test_it.py": TESTS, "pytest.ini": "[pytest]\n", "told": "energy memory"})
    run = here(pytester, "--update-baselines", "--reason=first")
    assert run.result.ret == 0, run.text
    assert not any("not checked" in line for line in run.result.outlines)
    return pytester


def here(project: pytest.Pytester, *options: str) -> WholeRun:
    return WholeRun(project.runpytest_inprocess("-v", "-rA", "--gpus=2", *options))


def in_a_worker(project: pytest.Pytester, *options: str) -> WholeRun:
    """The worker is a process of its own, so a conftest shows it the GPUs."""
    write(project.path, {"conftest.py": CONFTEST + "fake_gpus.without_ranks(pytest.MonkeyPatch())\n"})
    return run_pytest(project.path, "-n1", "--gpus=2", *options)


@pytest.mark.parametrize("run_in", [here, in_a_worker], ids=["alone", "xdist"])
def test_the_summary_and_the_results_tell_them(recorded: pytest.Pytester, run_in: Callable[..., WholeRun]) -> None:
    for told, lines in (("energy memory", []), ("memory", [LINE])):
        (recorded.path / "told").write_text(told)
        # Without energy the time is twice as long: it is told of a test that waits for other launches, too.
        run = run_in(recorded, "--gpuperf-json=results.json")
        assert run.result.ret == (1 if lines else 0), run.text
        assert [line for line in run.section("gpuperf") if "not checked" in line] == lines
        results = load(recorded.path / "results.json")
        assert results.unchecked == ((Unchecked("test_it.py::test_a[2ranks]", "energy"),) if lines else ())


def test_of_a_changed_body_nothing_is_told(recorded: pytest.Pytester) -> None:
    (recorded.path / "test_it.py").write_text(TESTS.replace("for name in", "for  name in"))
    (recorded.path / "told").write_text("memory")
    run = here(recorded)
    assert run.result.ret == 1
    assert not any("not checked" in line for line in run.result.outlines)
    assert any(line.startswith("missing") for line in run.section("gpuperf"))


def test_results_of_earlier_versions_are_read(recorded: pytest.Pytester) -> None:
    assert here(recorded, "--gpuperf-json=results.json").result.ret == 0
    data = json.loads((path := recorded.path / "results.json").read_text())
    assert data.pop("unchecked") == []
    path.write_text(json.dumps(data))
    assert load(path).unchecked == ()
