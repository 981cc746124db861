"""A process that leaves the session of the rank that started it ends with its test, and with pytest at the latest."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ranks.processes import survivors
from tests.whole_run import WholeRun, environment, run_pytest, write

pytestmark = pytest.mark.usefixtures("fresh_python")

GONE_WITHIN = 5.0  # seconds from the death of pytest; 0.1 s is usual
STARTED_WITHIN = 120.0  # seconds; torchrun imports torch

TESTS = """
import os, subprocess, sys, time
from pathlib import Path
import pytest

HERE = Path(__file__).parent
NAMES_ITSELF = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"

def until(condition):
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)

def own_session(file):
    subprocess.Popen([sys.executable, "-c", NAMES_ITSELF, file], start_new_session=True)

def double_fork(file):
    if (child := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            Path(file).write_text(str(os.getpid()))
            time.sleep(600)
        os._exit(0)
    os.waitpid(child, 0)

def torchrun(file):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", "--master-port=0", "--no-python"]
    agent = subprocess.Popen([*command, sys.executable, "-c", NAMES_ITSELF, file])
    until(lambda: os.path.exists(file) and Path(file).read_text())
    agent.kill()  # its worker has a session of its own
    agent.wait()

def without_variables(file):
    subprocess.Popen([sys.executable, "-c", NAMES_ITSELF, file], start_new_session=True, env={})

@pytest.mark.ranks(2)
@pytest.mark.parametrize("way", [own_session, double_fork, torchrun, without_variables])
def test_leaves(ranks, way):
    def program(ctx, file):
        if ctx.rank == 1:
            way(file)
            until(lambda: os.path.exists(file) and Path(file).read_text())

    ranks.run(program, str(HERE / way.__name__))

@pytest.mark.ranks(2)
@pytest.mark.skipif("HOLDS_ON" not in os.environ, reason="ends with pytest")
def test_holds_on(ranks):
    def program(ctx, here):
        for way in (own_session, double_fork, torchrun, without_variables) if ctx.rank == 1 else ():
            way(str(here / way.__name__))
        time.sleep(600)

    ranks.run(program, HERE)

@pytest.mark.ranks(2)
def test_leaves_and_dies(ranks):
    def program(ctx, file):
        if ctx.rank == 1:
            own_session(file)
            until(lambda: os.path.exists(file) and Path(file).read_text())
            os._exit(3)
    ranks.run(program, str(HERE / "died"))

def test_next(request):
    for name in ("own_session", "double_fork", "torchrun", "without_variables", "died"):
        if (HERE / name).exists():
            pid = (HERE / name).read_text()
            until(lambda: not os.path.exists(f"/proc/{pid}"))

@pytest.mark.ranks(2)
def test_the_forkserver_is_killed(ranks):
    def program(ctx, file):
        if ctx.rank == 1:
            own_session(file)
            until(lambda: os.path.exists(file) and Path(file).read_text())
            os.kill(os.getppid(), 9)
        time.sleep(600)
    ranks.run(program, str(HERE / "lost"))
"""
WAYS = ("own_session", "double_fork", "torchrun", "without_variables")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = write(tmp_path_factory.mktemp("escapes"), {"test_it.py": TESTS})
    yield folder
    kill_what_is_left(folder)


@pytest.fixture(scope="module")
def run(folder: Path) -> WholeRun:
    return run_pytest(folder)


def left_by(folder: Path) -> list[int]:
    """Processes that tests started and that named themselves in a file."""
    names = (*WAYS, "died", "lost")
    return [int((folder / name).read_text()) for name in names if (folder / name).exists()]


def kill_what_is_left(folder: Path) -> None:
    for pid in survivors(left_by(folder), within=0.0):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("way", WAYS)
def test_a_warning_names_the_test_and_the_process(run: WholeRun, folder: Path, way: str) -> None:
    assert run.outcomes[f"test_leaves[2ranks-{way}]"] == "PASSED"
    pid = (folder / way).read_text()
    [line] = [line for line in run.text.splitlines() if "LeakWarning" in line and f"(pid {pid})" in line]
    assert re.search(rf"test_leaves\[2ranks-{way}\] left behind, .*: rank 1: child processes: \S*python\S* -", line)


def test_they_end_before_the_next_test(run: WholeRun) -> None:
    assert run.outcomes["test_next"] == "PASSED"
    assert run.outcomes["test_holds_on[2ranks]"] == "SKIPPED"


def test_one_that_a_dead_rank_started_ends_too(run: WholeRun, folder: Path) -> None:
    assert "rank 1 of 2 (gloo) in test_it:test_leaves_and_dies.<locals>.program exited with code 3" in run.text
    assert survivors([int((folder / "died").read_text())], within=0.0) == []


def test_one_ends_whose_forkserver_was_killed(run: WholeRun, folder: Path) -> None:
    assert run.outcomes["test_the_forkserver_is_killed[2ranks]"] == "FAILED"
    assert survivors([int((folder / "lost").read_text())], within=0.0) == []


def test_a_run_that_ends_leaves_none(run: WholeRun, folder: Path) -> None:
    assert len(left_by(folder)) == len(WAYS) + 2
    assert survivors(left_by(folder), within=0.0) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_is_killed_leaves_none(tmp_path: Path, number: int) -> None:
    write(tmp_path, {"test_it.py": TESTS})
    command = [sys.executable, "-m", "pytest", "-k", "test_holds_on", "-p", "no:cacheprovider"]
    process = subprocess.Popen(
        [*command, "-o", f"gpuperf_leases={tmp_path / '.leases'}"],
        cwd=tmp_path,
        env=environment(HOLDS_ON="1"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + STARTED_WITHIN
        while not all((tmp_path / way).exists() and (tmp_path / way).read_text() for way in WAYS):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)
        process.send_signal(number)
        process.wait()
        assert survivors(left_by(tmp_path), within=GONE_WITHIN) == []
    finally:
        process.kill()
        process.wait()
        kill_what_is_left(tmp_path)
