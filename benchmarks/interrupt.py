"""How long pytest takes to end after Ctrl-C while ranks are up, at random moments of a run.

    python benchmarks/interrupt.py [--runs 60] [--seed 1] [--most 2.0]

Each run is a pytest process of its own. Its tests bring up ranks of several world sizes. The last test does what ranks
may be doing when the user loses patience: sleep, wait for one another, compute, exchange, or come up. SIGINT reaches
pytest at a moment that is drawn anew for each run. The table has two times: until pytest has ended its ranks and is
unconfigured, and until its process is gone. The second includes what Python takes to leave with torch loaded. The row
"no ranks" shows that time alone.

The exit status is 1 if ending the ranks took longer than ``--most`` seconds in any run.
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.pytest_command import pytest_command

TIMEOUT = 60.0  # seconds, after which a run that does not end is killed
MOMENTS = (1.0, 9.0)  # seconds after the start of pytest between which SIGINT is sent
ENDED = "ended.txt"

CONFTEST = f"""
import time
from pathlib import Path
import pytest

@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    Path(__file__).with_name({ENDED!r}).write_text(str(time.monotonic()))
"""

TESTS = """
import threading
import time
import pytest
import torch
import torch.distributed as dist

def short(ctx):
    dist.all_reduce(torch.ones(4))

def sleeping(ctx):
    time.sleep(3600)

def waiting(ctx):
    dist.barrier() if ctx.rank else threading.Event().wait()

def computing(ctx):
    while True:
        torch.ones(300, 300) @ torch.ones(300, 300)

def exchanging(ctx):
    while True:
        dist.all_reduce(torch.ones(1 << 18))

@pytest.mark.ranks(2)
def test_warms_up(ranks):
    ranks.run(short)

@pytest.mark.ranks({world_size})
def test_last(ranks):
    ranks.run({state})
"""

COMING_UP = """
import pytest
import torch

def nothing(ctx):
    pass

@pytest.mark.parametrize("n", range(100))
@pytest.mark.ranks({world_size}, own_processes=True)
def test_starts_ranks(ranks, n):
    ranks.run(nothing)
"""

WITHOUT = """
import time
import torch
import torch.distributed

def test_last():
    time.sleep(3600)
"""

STATES = ("sleeping", "waiting", "computing", "exchanging", "coming up", "no ranks")


@dataclass(frozen=True, slots=True)
class Interrupted:
    """One run's end, in seconds after SIGINT."""

    state: str
    at: float
    """Seconds from the start of pytest to SIGINT."""
    unconfigured: float | None
    """None where pytest had not been configured yet, or had to be killed."""
    gone: float


def source(state: str, world_size: int) -> str:
    """The test module of a run."""
    if state == "no ranks":
        return WITHOUT
    return (COMING_UP if state == "coming up" else TESTS).format(world_size=world_size, state=state)


def interrupted(state: str, world_size: int, at: float) -> Interrupted:
    """Runs pytest and sends it SIGINT so many seconds after its start."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "test_interrupted.py").write_text(source(state, world_size))
        command = pytest_command("-p", "no:cacheprovider", "-o", "gpuperf_leases=leases")
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            time.sleep(at)
            sent = time.monotonic()
            process.send_signal(signal.SIGINT)
            try:
                process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
            gone = time.monotonic() - sent
        ended = folder / ENDED
        unconfigured = float(ended.read_text()) - sent if ended.exists() else None
        return Interrupted(state, at, unconfigured, gone)


def draw(runs: int, seed: int) -> list[tuple[str, int, float]]:
    """State, world size and moment of each run; the states take turns."""
    rng = random.Random(seed)
    return [(STATES[run % len(STATES)], rng.choice((2, 3, 4)), rng.uniform(*MOMENTS)) for run in range(runs)]


def table(found: Sequence[Interrupted]) -> str:
    """Median and worst seconds of each state."""
    lines = [
        f"{'state':12}{'runs':>6}{'unconfigured':>24}{'gone':>24}",
        f"{'':18}{'median, worst':>24}{'median, worst':>24}",
    ]
    for state in STATES:
        own = [one for one in found if one.state == state]
        if own:
            ours = [one.unconfigured for one in own if one.unconfigured is not None]
            lines.append(f"{state:12}{len(own):6}{_seconds(ours):>24}{_seconds([one.gone for one in own]):>24}")
    return "\n".join(lines)


def _seconds(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f}, {max(values):.2f} s" if values else "-"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; 1 if a run took too long."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=float, default=2.0, help="seconds in which ranks must have ended")
    asked = parser.parse_args(arguments)
    found = []
    for state, world_size, at in draw(asked.runs, asked.seed):
        one = interrupted(state, world_size, at)
        found.append(one)
        ours = "-" if one.unconfigured is None else f"{one.unconfigured:.2f} s"
        print(f"{state}, {world_size} ranks, at {at:.1f} s: unconfigured {ours}, gone {one.gone:.2f} s", flush=True)
    print(table(found))
    return int(any((one.unconfigured or 0.0) > asked.most for one in found))


if __name__ == "__main__":
    sys.exit(main())
