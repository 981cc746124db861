"""Nothing outlives pytest, whenever and however it ends: no rank, no forkserver."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ranks.processes import alive, descendants, survivors
from tests.whole_run import environment, write

pytestmark = pytest.mark.usefixtures("fresh_python")

GONE_WITHIN = 2.0  # seconds from the death of pytest
ENDED_WITHIN = 5.0  # seconds from Ctrl-C to pytest's own end

TESTS = """
import os, signal, subprocess, time
from pathlib import Path
import pytest

HERE = Path(__file__).parent

def say(what):
    (HERE / what).touch()

@pytest.fixture
def slow_to_tear_down():
    yield
    if (HERE / "to_the_end").exists():
        say("tearing_down")
        time.sleep(60)

@pytest.mark.ranks(2)
def test_it(ranks, slow_to_tear_down):
    def program(ctx, here):
        import torch, torch.distributed as dist  # here, so that only the forkserver takes the time to load it
        child = subprocess.Popen(["sleep", "600"])
        (here / f"child.{ctx.rank}").write_text(str(child.pid))
        if ctx.rank == 0:
            (here / "in_a_collective").touch()
            if not (here / "go_on").exists():
                dist.all_reduce(torch.ones(1))
        elif not (here / "go_on").exists():
            time.sleep(600)

    ranks.run(program, HERE)
    if (HERE / "with_a_child").exists() and not (pid := os.fork()):  # which holds all that pytest has open
        signal.pause()
        os._exit(0)
    elif (HERE / "with_a_child").exists():
        (HERE / "kept").write_text(str(pid))
    say("idle")
    if not (HERE / "to_the_end").exists():
        time.sleep(60)
"""


def is_forkserver(pid: int) -> bool:
    """Whether it is ours; importing torch may start short-lived processes of its own."""
    try:
        return b"pytest_gpuperf" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


class Victim:
    """A run of pytest in the middle of its work."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", f"gpuperf_leases={folder / '.leases'}"],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A shell's background jobs, and all that they start, ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.005)  # no event tells of another process's progress

    def has_said(self, what: str) -> Callable[[], bool]:
        return lambda: (self.folder / what).exists()

    def started(self) -> list[int]:
        """All processes that it started, those of its ranks among them."""
        children = [int(file.read_text()) for file in self.folder.glob("child.*") if file.read_text()]
        children += self.kept()
        return sorted({*descendants(self.process.pid), *children})

    def kept(self) -> list[int]:
        """A child of pytest's own that a test forked; the kernel has it go on."""
        return [int(file.read_text()) for file in self.folder.glob("kept")]


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Callable[..., Victim]]:
    victims: list[Victim] = []

    def start(*files: str) -> Victim:
        folder = tmp_path / str(len(victims))
        victims.append(Victim(write(folder, {"test_it.py": TESTS, **dict.fromkeys(files, "")})))
        return victims[-1]

    yield start
    for one in victims:
        for pid in [*one.started(), one.process.pid]:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        one.process.communicate()


@pytest.mark.parametrize(
    ("point", "files"),
    [
        ("importing", ()),
        ("starting_ranks", ()),
        ("in_a_collective", ()),
        ("idle", ("go_on", "with_a_child")),
        ("tearing_down", ("go_on", "to_the_end")),
    ],
)
def test_a_killed_pytest_leaves_nothing(victim: Callable[..., Victim], point: str, files: tuple[str, ...]) -> None:
    run = victim(*files)
    if point == "importing":
        run.wait_for(lambda: any(map(is_forkserver, descendants(run.process.pid))))
    elif point == "starting_ranks":
        run.wait_for(lambda: len(descendants(run.process.pid)) >= 3)
    else:
        run.wait_for(run.has_said(point))
    processes = run.started()
    assert processes
    run.process.kill()
    run.process.wait()
    start = time.monotonic()
    assert survivors([pid for pid in processes if pid not in run.kept()], within=GONE_WITHIN) == []
    print(f"{point}: {len(processes)} processes gone after {time.monotonic() - start:.2f} s")


def test_ctrl_c_in_a_collective_ends_pytest_with_its_summary(victim: Callable[..., Victim]) -> None:
    took = [interrupted(victim())]
    if took[0] > ENDED_WITHIN:  # 2.4 s on a quiet machine; one that is busy with other tests gets another try
        took.append(interrupted(victim()))
    assert min(took) < ENDED_WITHIN


def interrupted(run: Victim) -> float:
    """Seconds from Ctrl-C to the end of a run whose rank 0 waits in a collective."""
    run.wait_for(run.has_said("in_a_collective"))
    processes = run.started()
    start = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    printed, _ = run.process.communicate(timeout=60)
    took = time.monotonic() - start
    assert run.process.returncode == pytest.ExitCode.INTERRUPTED
    assert "KeyboardInterrupt" in printed
    assert "no tests ran in" in printed
    assert survivors(processes, within=GONE_WITHIN) == []
    return took
