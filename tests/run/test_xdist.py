"""Ranks under xdist: each worker has its own, and the controller tells of all."""

import subprocess
import sys
from pathlib import Path

from tests.whole_run import environment, run_pytest, write

TESTS = """
import os, time
from pathlib import Path
import pytest
from pytest_gpuperf import Metric

HERE = Path(__file__).parent

@pytest.mark.ranks(2)
@pytest.mark.parametrize("n", range(4))
def test_ranks(ranks, n):
    (HERE / f"{os.environ['PYTEST_XDIST_WORKER']}.here").touch()
    end = time.monotonic() + 60
    while len(list(HERE.glob("*.here"))) < 2:  # both workers run a test, though there may be cores for one alone
        assert time.monotonic() < end, "the other worker waits"
        time.sleep(0.01)
    assert ranks.run(lambda ctx: (ctx.rank, n)) == [(0, n), (1, n)]

@pytest.mark.ranks(2)
def test_fails(ranks):
    def program(ctx):
        print("printed by", ctx.rank)
        assert ctx.rank == 0
    ranks.run(program)

@pytest.mark.perf
@pytest.mark.ranks(2)
@pytest.mark.parametrize("n", range(2))
def test_speed(perf, n):
    perf.check(time=Metric(1.0, "s", "lower"))
"""


def test_workers_run_ranks_side_by_side_and_the_controller_tells_of_all(tmp_path: Path) -> None:
    run = run_pytest(write(tmp_path, {"test_it.py": TESTS, "pytest.ini": "[pytest]\n"}), "-n2", "--smoke")
    run.result.assert_outcomes(passed=6, failed=1)
    assert "Captured stdout of rank 1 of 2 call" in run.text
    assert "raised on rank 1 of 2 (gloo) in test_it:test_fails.<locals>.program" in run.text
    assert "2 perf tests ran and handed over 2 metrics; --smoke judges none" in run.section("gpuperf")


UNJUDGED = """
import pytest
from pytest_gpuperf import Metric

@pytest.mark.ranks(1)
def test_speed(perf):
    perf.show(time=Metric(1.0, "s", "lower"))

def test_plain():
    pass
"""


def test_a_controller_without_options_tells_of_what_its_workers_ran(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-n1"]  # an ini key of the plugin would begin the run at once
    folder = write(tmp_path, {"test_it.py": UNJUDGED, "pytest.ini": "[pytest]\n"})
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert "1 passed, 1 skipped" in done.stdout
    assert "\n1 test did not run: perf tests measure GPUs and none are in use" in done.stdout


WITH_GPUS = """
import pytest
from tests import fake_gpus

fake_gpus.install(pytest.MonkeyPatch(), visible=2)
fake_gpus.without_ranks(pytest.MonkeyPatch())
"""

SHARED = """
import time
from pathlib import Path
import pytest
from pytest_gpuperf import Metric
from pytest_gpuperf.plugin import SESSION

ROUNDS = {"test_a": 2, "test_b": 8}  # one worker measures while the other has tests that share
HERE, ME = Path(__file__).parent, Path(__file__).stem

def until(happened):
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)

@pytest.mark.ranks(2)
def test_meets_the_other_worker(ranks, pytestconfig):
    assert pytestconfig.stash[SESSION].ranks.current.gpus == ("GPU-0", "GPU-1")
    (HERE / f"{ME}.here").touch()
    until(lambda: len(list(HERE.glob("*.here"))) == 2)  # on the same GPUs, at the same time

@pytest.mark.ranks(2)
@pytest.mark.parametrize("n", range(ROUNDS[ME]))
def test_is_never_beside_a_perf_test(ranks, n):
    running = HERE / f"{ME}.running"
    running.touch()
    time.sleep(0.1)
    assert not list(HERE.glob("*.perf"))
    running.unlink()

@pytest.mark.perf
@pytest.mark.ranks(2)
def test_is_alone(perf):
    here = HERE / f"{ME}.perf"
    here.touch()
    time.sleep(0.1)
    assert [path.name for path in HERE.iterdir() if path.suffix in (".running", ".perf")] == [here.name]
    here.unlink()
    perf.check(time=Metric(1.0, "s", "lower"))
"""


def test_workers_share_gpus_and_a_perf_test_has_them_alone(tmp_path: Path) -> None:
    sources = {"test_a.py": SHARED, "test_b.py": SHARED, "conftest.py": WITH_GPUS, "pytest.ini": "[pytest]\n"}
    run = run_pytest(write(tmp_path, sources), "-n2", "--dist=loadfile", "--gpus=2", "--smoke")
    run.result.assert_outcomes(passed=14)
