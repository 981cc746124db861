"""Figures that have a baseline and that their test checks no more."""

import json
from pathlib import Path

import pytest

from pytest_gpuperf.report.results_file import Unchecked, load
from tests.run.test_judged_run import CONFTEST
from tests.whole_run import run_pytest, write

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
LINE = "1 figure with a baseline was not checked: test_it.py::test_a[2ranks] energy"


def recorded(folder: Path) -> Path:
    conftest = CONFTEST + "fake_gpus.without_ranks(pytest.MonkeyPatch())\n"
    write(folder, {"conftest.py": conftest, "test_it.py": TESTS, "pytest.ini": "[pytest]\n", "told": "energy memory"})
    run = run_pytest(folder, "--gpus=2", "--update-baselines", "--reason=first")
    assert run.result.ret == 0, run.text
    assert not any("not checked" in line for line in run.result.outlines)
    return folder


@pytest.mark.parametrize("options", [(), ("-n1",)], ids=["alone", "xdist"])
def test_the_summary_and_the_results_tell_them(tmp_path: Path, options: tuple[str, ...]) -> None:
    folder = recorded(tmp_path)
    for told, lines in (("energy memory", []), ("memory", [LINE])):
        (folder / "told").write_text(told)
        # Without energy the time is twice as long: it is told of a test that waits for other launches, too.
        run = run_pytest(folder, "--gpus=2", "--gpuperf-json=results.json", *options)
        assert run.result.ret == (1 if lines else 0)
        assert [line for line in run.section("gpuperf") if "not checked" in line] == lines
        results = load(folder / "results.json")
        assert results.unchecked == ((Unchecked("test_it.py::test_a[2ranks]", "energy"),) if lines else ())


def test_of_a_changed_body_nothing_is_told(tmp_path: Path) -> None:
    folder = recorded(tmp_path)
    (folder / "test_it.py").write_text(TESTS.replace("for name in", "for  name in"))
    (folder / "told").write_text("memory")
    run = run_pytest(folder, "--gpus=2")
    assert run.result.ret == 1
    assert not any("not checked" in line for line in run.result.outlines)
    assert any(line.startswith("missing") for line in run.section("gpuperf"))


def test_results_of_earlier_versions_are_read(tmp_path: Path) -> None:
    folder = recorded(tmp_path)
    assert run_pytest(folder, "--gpus=2", "--gpuperf-json=results.json").result.ret == 0
    data = json.loads((path := folder / "results.json").read_text())
    assert data.pop("unchecked") == []
    path.write_text(json.dumps(data))
    assert load(path).unchecked == ()
