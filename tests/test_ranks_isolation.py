"""What a test leaves behind, and tests that have processes of their own, in whole runs of pytest."""

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ranks.processes import survivors
from tests.whole_run import WholeRun, run_pytest, write

LEAKS = """
import os, resource, subprocess, sys, threading
from pathlib import Path
import pytest

pytestmark = pytest.mark.ranks(2)
HOME = os.getcwd()
FILES = Path(__file__).parent

def surroundings(ctx):
    import torch  # here, so that only the forkserver takes the time to load it

    return (
        str(torch.get_default_dtype()), os.environ.get("LEFT"), os.getcwd(), resource.getrlimit(resource.RLIMIT_NOFILE),
        [thread.name for thread in threading.enumerate() if not thread.daemon],
        "".join(children.read_text() for children in Path("/proc/self/task").glob("*/children")),
    )

def told(ranks, name):
    (FILES / name).write_text(repr([ranks.run(surroundings), ranks.run(lambda ctx: os.getpid())]))

def test_before(ranks):
    told(ranks, "before")

def test_leaves_much(ranks):
    def program(ctx):
        import torch
        torch.set_default_dtype(torch.float64)
        os.environ["LEFT"] = "x"
        os.chdir("/")
        resource.setrlimit(resource.RLIMIT_NOFILE, (500, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        threading.Thread(target=threading.Event().wait, name="forgotten").start()
        if ctx.rank == 1:
            child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
            (FILES / "child").write_text(str(child.pid))
    ranks.run(program)

def test_after(ranks):
    told(ranks, "after")

def test_leaves_only_groups(ranks):
    def program(ctx):
        import torch.distributed as dist
        dist.new_group([0, 1])
    ranks.run(program)

def test_after_groups(ranks):
    told(ranks, "after_groups")

@pytest.mark.filterwarnings("error")
def test_leaves_where_warnings_are_errors(ranks):
    ranks.run(lambda ctx: os.environ.update(LEFT="y"))

def test_after_an_error(ranks):
    told(ranks, "after_error")

@pytest.mark.ranks(2, isolation="process")
def test_alone(ranks):
    told(ranks, "alone")

@pytest.mark.ranks(2, isolation="process")
def test_alone_again(ranks):
    told(ranks, "alone_again")

@pytest.mark.ranks(2, env={"LEFT": "of the marker"})
def test_with_a_variable(ranks):
    told(ranks, "variable")
    assert "LEFT" not in os.environ

def test_without_it(ranks):
    told(ranks, "without")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("isolation")


@pytest.fixture(scope="module")
def run(folder: Path) -> WholeRun:
    return run_pytest(write(folder, {"test_it.py": LEAKS, "pytest.ini": "[pytest]\n"}))


def seen(folder: Path, name: str) -> tuple[Any, list[int]]:
    """The surroundings that a test's ranks found, and their process ids."""
    surroundings, pids = ast.literal_eval((folder / name).read_text())
    return surroundings, pids


def test_all_went_well_but_for_the_warning_that_was_an_error(run: WholeRun) -> None:
    bad = {name for name, outcome in run.outcomes.items() if outcome != "PASSED"}
    assert bad == {"test_leaves_where_warnings_are_errors[2ranks]"}, run.text


def test_what_was_left_behind_is_a_warning_that_names_the_test(run: WholeRun, folder: Path) -> None:
    (line,) = [line for line in run.section("warnings summary") if "LeakWarning: " in line]
    head, _, left = line.strip().partition("LeakWarning: ")
    assert re.fullmatch(r"\S*test_it\.py:\d+: ", head)
    name, _, left = left.partition(" left behind, in ranks that were replaced: ")
    assert name == "test_it.py::test_leaves_much[2ranks]"
    for expected in (
        "ranks 0, 1: environment: LEFT unset -> 'x'",
        f"ranks 0, 1: working directory: {folder} -> /",
        "ranks 0, 1: default dtype: torch.float32 -> torch.float64",
        "ranks 0, 1: resource limits: RLIMIT_NOFILE ",
        "rank 0: threads: forgotten (",
        "rank 1: threads: forgotten (",
        f"rank 1: child processes: {sys.executable} -c import sys; sys.stdin.read() (pid ",
    ):
        assert expected in left


@pytest.mark.parametrize("name", ["after", "after_error"])
def test_the_next_test_has_clean_ranks(run: WholeRun, folder: Path, name: str) -> None:
    before, pids = seen(folder, "before")
    after, new = seen(folder, name)
    assert after == before
    assert set(new).isdisjoint(pids)


def test_a_child_that_was_left_behind_is_ended(run: WholeRun, folder: Path) -> None:
    assert survivors([int((folder / "child").read_text())]) == []


def test_process_groups_are_closed_without_a_word(run: WholeRun, folder: Path) -> None:
    assert seen(folder, "after_groups") == seen(folder, "after")


def test_where_warnings_are_errors_a_leak_is_one(run: WholeRun) -> None:
    assert "ERROR at teardown of test_leaves_where_warnings_are_errors[2ranks]" in run.text
    assert re.search(
        r"^E +pytest_gpuperf\.session\.LeakWarning: test_it\.py::test_leaves_where_warnings_are_errors\[2ranks\] left "
        r"behind, in ranks that were replaced: ranks 0, 1: environment: LEFT unset -> 'y'$",
        run.text,
        re.MULTILINE,
    )


def test_a_test_with_processes_of_its_own_shares_them_with_nobody(run: WholeRun, folder: Path) -> None:
    names = ("after_error", "alone", "alone_again", "variable")
    pids = [set(seen(folder, name)[1]) for name in names]
    assert len(set().union(*pids)) == 2 * len(names)


def test_the_markers_variables_are_seen_by_its_test_alone(run: WholeRun, folder: Path) -> None:
    variables = {name: [rank[1] for rank in seen(folder, name)[0]] for name in ("alone", "variable", "without")}
    assert variables == {"alone": [None] * 2, "variable": ["of the marker"] * 2, "without": [None] * 2}


LIVE = """
import pytest
pytestmark = pytest.mark.ranks(2)

def test_prints(ranks):
    def program(ctx):
        print("printed by", ctx.rank)
        print("without an end", end="")
        if ctx.rank == 1:
            secret = 21
            raise ValueError("look")
        ctx.barrier()
    ranks.run(program)

def test_dies(ranks):
    ranks.run(lambda ctx: __import__("os")._exit(1))
"""


def test_with_s_ranks_print_as_they_go_and_with_pdb_the_user_meets_the_rank(tmp_path: Path) -> None:
    typed = "p secret * 2\np ctx.rank\nq\nc\n" + "c\n"
    run = run_pytest(write(tmp_path, {"test_it.py": LIVE, "pytest.ini": "[pytest]\n"}), "-s", "--pdb", typed=typed)
    lines = run.result.outlines
    for rank in (0, 1):  # the first line stands behind the test's name
        assert sum(line.endswith(f"[rank {rank} of 2] printed by {rank}") for line in lines) == 1
    assert {"[rank 0] without an end", "[rank 1] without an end"} < set(lines)
    assert "Captured" not in run.text
    banner = lines.index(
        ">>>>>> rank 1 is held where its program failed: this is pdb in its process, with its own variables; q goes on"
    )
    assert lines.index('-> raise ValueError("look")') > banner
    assert any(line.endswith("42") for line in lines[banner:])
    # One that died cannot be met.
    assert sum(line.startswith(">>>>>> rank") for line in lines) == 1
    assert "no rank is left to debug, because the failing one ended or a later run took its place" in run.text
