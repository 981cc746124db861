"""Without hypothesis, xdist or pytest-benchmark: switched off by ``-p no:``, or not installed at all."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch  # noqa: F401  # here, so that not each run of pytest in this process imports it anew

from tests import scripted_figures
from tests.whole_run import environment, run_pytest, write

PACKAGES = ("hypothesis", "xdist", "pytest_benchmark")
KEY = "2x-nvidia-h200-nv18"

ON_RANKS = """
import pytest
from pytest_gpuperf import Metric

@pytest.mark.ranks(1, 2)
def test_right(ranks):
    assert ranks.run(lambda ctx: ctx.rank) == list(range(ranks.world_size))

@pytest.mark.ranks(2)
def test_wrong(ranks):
    def program(ctx):
        print("printed by", ctx.rank)
        assert ctx.rank == 0
    ranks.run(program)

@pytest.mark.ranks(2)
def test_skipped(ranks):
    ranks.run(lambda ctx: pytest.skip("not today"))

@pytest.mark.ranks(2)
def test_speed(perf):
    timing = perf.measure(lambda ctx: lambda: None)
    perf.check(time=timing.time)
"""

DRAWN = """
import pytest
from hypothesis import given, settings, strategies as st

@pytest.mark.ranks(2)
@settings(deadline=None, max_examples=5, database=None)
@given(n=st.integers(0, 9))
def test_drawn(ranks, n):
    assert ranks.run(lambda ctx: n) == [n, n]
"""

# Read by every process of Python whose path it is on: by pytest, by the forkserver, and so by ranks.
NOT_INSTALLED = f"""
import sys

class NotInstalled:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {{*{PACKAGES!r}, "_hypothesis_pytestplugin"}}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, NotInstalled)
"""

FAKE_GPUS = """
import pytest
from tests import fake_gpus
patch = pytest.MonkeyPatch()
fake_gpus.install(patch, visible=2)
fake_gpus.without_ranks(patch)
"""


@pytest.fixture
def not_installed(tmp_path: Path) -> dict[str, str]:
    """An environment in which no process can import any of the three."""
    folder = write(tmp_path / "not_installed", {"sitecustomize.py": NOT_INSTALLED})
    path = os.pathsep.join([str(folder), environment()["PYTHONPATH"]])
    # pytest would import plugins by their entry points, which are still there.
    return {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_gpuperf.plugin"}


@pytest.mark.parametrize("plugin", ["hypothesispytest", "xdist", "benchmark"])
def test_a_plugin_may_be_off(pytester: pytest.Pytester, plugin: str) -> None:
    pytester.makepyfile(test_it=ON_RANKS, test_drawn=DRAWN)
    result = pytester.runpytest_inprocess("-p", f"no:{plugin}", "--smoke", "--gpuperf-json=results.json")
    result.assert_outcomes(passed=4, failed=1, skipped=1)
    assert "printed by 1" in result.outlines
    (verdict,) = json.loads((pytester.path / "results.json").read_text())["verdicts"]
    assert verdict["outcome"] == "unjudged"


def test_nothing_is_missed_where_none_is_installed(tmp_path: Path, not_installed: dict[str, str]) -> None:
    project = write(tmp_path / "project", {"test_it.py": ON_RANKS})
    run = run_pytest(project, "--smoke", "--gpuperf-json=results.json", "-Werror", env=not_installed)
    run.result.assert_outcomes(passed=3, failed=1, skipped=1)
    report = run.report("test_wrong[2ranks]")
    assert "raised on rank 1 of 2 (gloo) in test_it:test_wrong.<locals>.program" in report
    assert "printed by 1" in report
    assert "1 perf test ran and handed over 1 metric; --smoke judges none" in run.section("gpuperf")
    (verdict,) = json.loads((project / "results.json").read_text())["verdicts"]
    assert (verdict["test"], verdict["metric"]["unit"]) == ("test_it.py::test_speed[2ranks]", "s")


def test_figures_are_recorded_judged_and_adopted_where_none_is_installed(
    tmp_path: Path, not_installed: dict[str, str]
) -> None:
    figures = {f"{name}.json": json.dumps(scripted_figures.STEADY) for name in "abc"}
    project = write(tmp_path / "project", {"test_it.py": scripted_figures.TESTS, "conftest.py": FAKE_GPUS, **figures})
    recording = run_pytest(project, "--gpus=2", "--update-baselines", "--reason=first", env=not_installed)
    recording.result.assert_outcomes(passed=15)
    write(project, {"a.json": "[100e9]", "b.json": "[80e9]", "c.json": "[100e9]"})
    judged = run_pytest(project, "--gpus=2", "--gpuperf-json=results.json", env=not_installed)
    judged.result.assert_outcomes(passed=2, failed=1)
    assert judged.outcomes["test_b[2ranks]"] == "FAILED"
    adopt = [sys.executable, "-m", "pytest_gpuperf", "adopt", "results.json", "--reason=x", "--mode=append"]
    done = subprocess.run(
        adopt, cwd=project, env=environment(**not_installed), capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert f"baselines/{KEY}.json" in done.stdout


def test_strategies_tell_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    monkeypatch.delitem(sys.modules, "pytest_gpuperf.strategies", raising=False)
    told = (
        "pytest_gpuperf.strategies needs hypothesis, which is not installed; the rest of pytest_gpuperf works without "
        "it: install it with python -m pip install hypothesis"
    )
    with pytest.raises(ModuleNotFoundError, match=f"^{re.escape(told)}$"):
        importlib.import_module("pytest_gpuperf.strategies")


def test_a_hypothesis_that_is_broken_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    class LacksAModule:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "hypothesis":
                raise ModuleNotFoundError("No module named 'sortedcontainers'", name="sortedcontainers")

    for module in [name for name in sys.modules if name.partition(".")[0] == "hypothesis"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "pytest_gpuperf.strategies", raising=False)
    monkeypatch.setattr(sys, "meta_path", [LacksAModule, *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match="sortedcontainers"):
        importlib.import_module("pytest_gpuperf.strategies")
