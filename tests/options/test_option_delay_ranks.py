"""``--delay-ranks``: ranks are delayed at random, to provoke races, and a seed repeats it."""

import ast
import re
from pathlib import Path

import pytest

from tests.fake_gpus import without_ranks
from tests.options.test_option_gpus import usage_error
from tests.whole_run import WholeRun, run_pytest, write

TELLS = """
import time
from pathlib import Path
import pytest, torch, torch.distributed as dist

def program(ctx):
    slept = []
    time.sleep, sleep = slept.append, time.sleep
    try:
        for _ in range(12):
            dist.barrier()
        if ctx.rank:
            dist.send(torch.ones(1), dst=0)
        else:
            dist.recv(torch.ones(1), src=1)
    finally:
        time.sleep = sleep
    return slept

@pytest.mark.ranks(2)
def test_tells(ranks):
    slept = ranks.run(program)
    assert ranks.run(program) == slept
    print("slept", slept)
    assert "never"

@pytest.mark.ranks(2)
def test_fails(ranks):
    ranks.run(lambda ctx: 1 / 0)
"""

RACY = """
import time
import pytest
import torch.distributed as dist

@pytest.mark.ranks(2)
def test_racy(ranks, tmp_path):
    def program(ctx, folder):
        own = [dist.new_group([rank]) for rank in range(2)][ctx.rank]
        for turn in range(12):  # a busy machine may stop rank 0 in one of them for longer than rank 1 is delayed
            dist.barrier()
            if ctx.rank == 1:
                dist.barrier(own)
                (folder / str(turn)).write_text("there")
            else:
                time.sleep(0.005)  # the mistake that delays shall show: rank 1 began with us, so it must be done
                assert (folder / str(turn)).exists()

    ranks.run(program, tmp_path)
"""


def told(folder: Path, *options: str) -> tuple[WholeRun, list[list[float]]]:
    """A run, and the seconds of each rank's delays but the one before its program."""
    run = run_pytest(write(folder, {"test_it.py": TELLS, "test_race.py": RACY}), "-rA", *options)
    assert run.outcomes["test_tells[2ranks]"] == "PASSED", run.text
    slept = re.search(r"^slept (.*)$", run.text, re.MULTILINE)
    assert slept is not None
    return run, ast.literal_eval(slept[1])


def test_the_seed_of_the_header_repeats_the_delays_and_another_provokes_a_race(tmp_path: Path) -> None:
    run, slept = told(tmp_path / "first", "--delay-ranks=random")
    header = re.search(
        r"^gpuperf: ranks are delayed at random; (--delay-ranks=\d+) repeats it$", run.text, re.MULTILINE
    )
    assert header is not None
    assert all(len(own) == 13 for own in slept)  # 12 barriers, and a send or a receive
    assert slept[0] != slept[1]
    assert all(0 <= one <= 0.05 for own in slept for one in own)
    assert f'pytest "test_it.py::test_fails[2ranks]" {header[1]}' in run.text
    assert told(tmp_path / "again", header[1])[1] == slept
    other, others = told(tmp_path / "other", "--delay-ranks=306")
    assert others != slept
    assert other.outcomes["test_racy[2ranks]"] == "FAILED"


def test_no_rank_is_delayed_by_default(tmp_path: Path) -> None:
    run, slept = told(tmp_path)
    assert slept == [[], []]
    assert "ranks are delayed" not in run.text
    assert "--delay-ranks" not in run.text


def test_workers_have_one_seed(tmp_path: Path) -> None:
    files = {"test_it.py": TELLS, "test_again.py": TELLS}
    run = run_pytest(write(tmp_path, files), "--delay-ranks=random", "-n2", "--dist=loadfile")
    run.result.assert_outcomes(passed=2, failed=2)
    commands = re.findall(
        r'^pytest "(test_\w+)\.py::test_fails\[2ranks\]" (--delay-ranks=\d+)$', run.text, re.MULTILINE
    )
    assert {file for file, _ in commands} == {"test_it", "test_again"}
    assert len({seed for _, seed in commands}) == 1


@pytest.mark.parametrize("given", ["yes", "-1", "1.5"])
def test_what_is_no_seed_is_refused(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    without_ranks(monkeypatch)
    assert usage_error(pytester.runpytest_inprocess(f"--delay-ranks={given}")) == (
        f"--delay-ranks must be random, or the seed that the header of an earlier run tells, got '{given}'"
    )
