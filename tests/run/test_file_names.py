"""Test files whose names are no UTF-8, as Linux allows them: pytest decodes each such byte to a lone surrogate."""

import json
import os
import re
from pathlib import Path

import pytest

from pytest_gpuperf.baselines.json_files import load
from pytest_gpuperf.figures.metric import Metric
from tests.fake_gpus import without_ranks
from tests.scripted_arms import repeat
from tests.scripted_figures import STEADY, TESTS, figures
from tests.whole_run import environment, run_on_terminal

NAME = os.fsdecode(b"test_\xff.py")
# pytest's own cache, and its file for JUnit, cannot hold such a name.
NO_CACHE = ("-p", "no:cacheprovider")

ON_RANKS = """
import pytest
from pytest_gpuperf import Metric

def test_plain(): pass

@pytest.mark.ranks(2)
def test_right(ranks):
    assert ranks.run(lambda ctx: ctx.rank) == [0, 1]

@pytest.mark.ranks(2)
def test_wrong(ranks):
    def program(ctx):
        assert ctx.rank == 0, __file__
    ranks.run(program)

@pytest.mark.ranks(1)
def test_speed(perf):
    perf.check(time=Metric(1.0, "s", "lower"))
"""


def test_tests_run_on_ranks_and_are_reported(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(ON_RANKS)
    summary = tmp_path / "summary.md"
    # A terminal, where the progress line is shown, and an output that takes nothing but UTF-8.
    env = environment(
        TERM="xterm", PYTHONIOENCODING="utf-8:strict", GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary)
    )
    options = ("-v", "-rA", "--smoke", "--gpuperf-json=results.json", "-o", f"gpuperf_leases={tmp_path / '.leases'}")
    text = re.sub(r"\x1b\[[\d;]*m", "", run_on_terminal(tmp_path, *options, env=env))
    assert "1 failed, 3 passed" in text
    assert "raised on rank 1 of 2 (gloo)" in text
    assert "measuring (1 to go)" in text
    assert "::error file=" in text
    assert "test&#95; .py::test_speed" in summary.read_text()
    (verdict,) = json.loads((tmp_path / "results.json").read_text())["verdicts"]
    assert verdict["test"] == f"{NAME}::test_speed[1rank]"


@pytest.mark.usefixtures("eight_gpus")
def test_perf_tests_are_recorded_and_judged(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    without_ranks(monkeypatch)
    (pytester.path / NAME).write_text(TESTS)
    figures(pytester, a=STEADY, b=STEADY, c=STEADY)
    recorded = pytester.runpytest_inprocess(*NO_CACHE, "--gpus=2", "--update-baselines", "--reason=first")
    recorded.assert_outcomes(passed=15)
    key = "2x-nvidia-h200-nv18"
    baselines = load(pytester.path / "baselines" / f"{key}.json", key)
    assert baselines is not None
    assert sorted(baselines.tests) == [f"{NAME}::test_{name}[2ranks]" for name in "abc"]
    repeat(monkeypatch, lambda: {"busbw": Metric(80e9, "B/s", "higher", limit=450e9, clock="host")})
    figures(pytester, a=[100e9], b=[80e9], c=[100e9])
    pytester.runpytest_inprocess(*NO_CACHE, "--gpus=2").assert_outcomes(passed=2, failed=1)
