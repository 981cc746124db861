"""What ranks on nodes print, live and in reports, and the stacks of a hang: each names the node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.raylets import Raylets
from tests.whole_run import WholeRun, environment, run_pytest, write

SLOW = 300  # seconds; generous, since a machine may be busy
TESTS = """
import sys, time
from pathlib import Path
import pytest, torch.distributed as dist

HERE = Path(__file__).parent

def prints(ctx):
    print(f"here is rank {ctx.rank}", flush=True)
    print("no end", end="", file=sys.stderr, flush=True)

@pytest.mark.ranks(4, timeout=120)
def test_prints(ranks):
    def program(ctx):
        prints(ctx)
        while not (HERE / "seen").exists():
            time.sleep(0.05)
    ranks.run(program)

@pytest.mark.ranks(nodes=2)
def test_fails(ranks):
    ranks.run(prints)
    assert False

@pytest.mark.ranks(nodes=2, timeout=2)
def test_hangs(ranks):
    def program(ctx):
        if ctx.rank == 1:
            sleeps_long()
        dist.barrier()
    ranks.run(program)

def sleeps_long():
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("output"), {"test_it.py": TESTS})


def on(cluster: Raylets, folder: Path, *options: str) -> WholeRun:
    return run_pytest(folder, "--cluster", cluster.address, *options, timeout=SLOW)


def test_what_ranks_print_is_shown_with_rank_and_node_while_they_run(two_nodes: Raylets, folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-s", "-k", "test_prints"]
    expected = {
        f"[rank {rank} of 4 (node {node})] here is rank {rank}"
        for rank, node in enumerate(["gpu-a", "gpu-a", "gpu-b", "gpu-b"])
    }
    with subprocess.Popen(
        [*command, "--cluster", two_nodes.address], cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        found: set[str] = set()
        while found != expected:
            line = run.stdout.readline()
            assert line, f"the run ended, and had shown {found}"
            found |= {title for title in expected if line.endswith(f"{title}\n")}  # the first is behind dots
        (folder / "seen").touch()
        rest = run.stdout.read()
    assert run.returncode == 0, rest
    assert all(f"{title.partition('] ')[0]}] no end\n" in rest for title in expected), rest


@pytest.fixture(scope="module")
def reported(two_nodes: Raylets, folder: Path) -> WholeRun:
    return on(two_nodes, folder, "-k", "not test_prints")


def test_titles_of_output_name_the_node(reported: WholeRun) -> None:
    report = reported.report("test_fails[2ranks]")
    for rank, node in enumerate(["gpu-a", "gpu-b"]):
        assert f" Captured stdout of rank {rank} of 2 (node {node}) call " in report
        assert f"\nhere is rank {rank}\n" in report
        assert f" Captured stderr of rank {rank} of 2 (node {node}) call " in report


def test_a_hang_shows_the_stacks_of_ranks_on_all_nodes(reported: WholeRun) -> None:
    report = reported.report("test_hangs[2ranks]")
    assert "node gpu-a has rank 0; node gpu-b has rank 1" in report
    stacks = {rank: report.partition(f" stack of rank {rank} ")[2].partition("\n---")[0] for rank in (0, 1)}
    assert " in sleeps_long\n" in stacks[1], report
    assert "barrier" in stacks[0], report
    assert "sleeps_long" not in stacks[0]
