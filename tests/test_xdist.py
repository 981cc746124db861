"""Ranks under xdist: each worker has its own, and the controller tells of all."""

from pathlib import Path

from tests.whole_run import run_pytest, write

TESTS = """
import pytest
from pytest_gpuperf import Metric

@pytest.mark.ranks(2)
@pytest.mark.parametrize("n", range(4))
def test_ranks(ranks, n):
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
    assert "2 figures on cpu: 2 unjudged" in run.section("gpuperf")
