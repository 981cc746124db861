"""Which measurements find ranks that were timed just before: with real processes, and GPUs that are made up."""

from pathlib import Path

from tests.whole_run import run_pytest, write

CONFTEST = """
import pytest
from tests import fake_gpus
fake_gpus.install(pytest.MonkeyPatch(), visible=2)
"""

TESTS = """
import pathlib, time
import pytest

FOLDER = pathlib.Path(__file__).parent

def sleeping(ctx):
    return lambda: time.sleep(5e-3)

def measured(perf, ranks, name):
    ranks.run(len_of_world)  # is not timed
    for moment in ("before", "after"):
        with (FOLDER / "told.txt").open("a") as told:
            print(name, moment, perf._runner.idle_seconds(2) < 10, file=told)
        if moment == "before":
            perf.check(time=perf.configured(samples=10, budget=0.05).measure(sleeping).time)

def len_of_world(ctx):
    return ctx.world_size

pytestmark = pytest.mark.perf

@pytest.mark.ranks(2)
def test_first(perf, ranks):
    measured(perf, ranks, "first")

@pytest.mark.ranks(2)
def test_second(perf, ranks):
    measured(perf, ranks, "second")

@pytest.mark.ranks(2, env={"VARIABLE": "1"})
def test_third(perf, ranks):
    measured(perf, ranks, "with other processes")
"""


def test_ranks_stay_warm_from_one_test_of_a_launch_to_the_next(tmp_path: Path) -> None:
    write(tmp_path, {"conftest.py": CONFTEST, "test_it.py": TESTS})
    run = run_pytest(tmp_path, "--gpus=2", "--no-strict-baselines")
    assert run.result.ret == 0, run.text
    assert (tmp_path / "told.txt").read_text().splitlines() == [
        "first before False",
        "first after True",
        "second before True",
        "second after True",
        "with other processes before False",
        "with other processes after True",
    ]
