"""Shows all that this project does on one machine, part by part: each ends within a limit and is useful alone.

    python benchmarks/machine_tour.py --gpus N --folder DIR [--parts NAME ...] [--limit 570] [--nccl-tests DIR]
        [-k EXPR]

The parts, in their order:

    correctness   the suites but for perf tests
    side-by-side  the same with four workers on the same GPUs
    record        five launches of all perf tests, into baselines/
    judged        all perf tests against that record
    slowed        a commit that makes the broadcasts move 5 % more, against the record: they alone may be accused
    nccl-tests    the collectives beside nccl-tests, if --nccl-tests names its sources
    cost          what a test on ranks costs here, and with what others use
    faults        every way in which a rank can fail
    layouts       the tables of hybrid, and a training step over each transport and pod

Each part prints to DIR/PART.txt. DIR/tour.json has the command, exit status and seconds of every part. A part that
reaches its limit is interrupted as by Ctrl-C, so that pytest prints its summary. ``record`` goes on where it was
interrupted when it is called again. DIR/baselines has what it wrote. --parts picks some parts. Exit status 1 if a part
fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# Run as a script, the folder of the script is on the path and not the repository's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.pytest_command import pytest_command

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 570.0
"""Seconds of a part: machines are often lent for ten minutes at a time."""
PATIENCE = 30.0  # seconds that a part has for its summary once it is interrupted
PROGRAMS = Path("suites", "collectives", "programs", "plain.py")
FAST = "        dist.broadcast(x, src=root)\n"
SLOW = f"{FAST}        dist.broadcast(x[: max(1, x.numel() // 20)], src=root)\n"


@dataclass(frozen=True, slots=True)
class Given:
    """What the user asked for."""

    gpus: int
    folder: Path
    nccl_tests: Path | None
    select: str


@dataclass(frozen=True, slots=True)
class Ran:
    """A part that ran, and how it ended."""

    part: str
    command: str
    status: int
    """The command's exit status; minus the signal's number if one killed it."""
    seconds: float
    cut_short: bool
    """Whether its limit was over."""


def _suites(given: Given, *arguments: str, of: Sequence[str] = ("suites",)) -> list[str]:
    selected = ["-k", given.select] if given.select else []
    return pytest_command(*of, f"--gpus={given.gpus}", *arguments, *selected)


def _benchmark(name: str, given: Given, *arguments: str) -> list[str]:
    return [sys.executable, f"benchmarks/{name}.py", f"--gpus={given.gpus}", *arguments]


def _judged(given: Given, part: str, *of: str) -> list[str]:
    return _suites(given, "-m", "perf", f"--gpuperf-json={given.folder / part}.json", of=of)


def _recording(given: Given) -> list[str]:
    interrupted = ["--resume"] if list((ROOT / "baselines").glob(".*.journal")) else []
    return _suites(given, "-m", "perf", "--update-baselines", "--reason=a tour", *interrupted)


PARTS: Mapping[str, Callable[[Given], list[str]]] = {
    "correctness": lambda given: _suites(given, "-m", "not perf", "--hypothesis-profile=quick"),
    "side-by-side": lambda given: _suites(
        given, "-m", "not perf", "--hypothesis-profile=quick", "-n", "4", "--dist", "worksteal"
    ),
    "record": _recording,
    "judged": lambda given: _judged(given, "judged", "suites"),
    "slowed": lambda given: _judged(given, "slowed", "suites/collectives/test_performance.py::test_bus_bandwidth"),
    "nccl-tests": lambda given: _benchmark(
        "against_nccl_tests", given, f"--nccl-tests={given.nccl_tests}", "--build", "--turns=1", "--check"
    ),
    "cost": lambda given: _benchmark("rank_cost", given, "--turns=2"),
    "faults": lambda given: pytest_command("tests/faults", f"--gpus={given.gpus}", "-p", "no:xdist"),
    "layouts": lambda given: _judged(
        given, "layouts", "suites/hybrid", "suites/transports", "suites/llm_step", "suites/multi_node"
    ),
}
"""The command of each part."""


def run(part: str, given: Given, limit: float) -> Ran:
    """Runs a part in the folder of the checkout, or of a copy of it for ``slowed``; what it prints goes to a file."""
    command = PARTS[part](given)
    where = slowed_checkout(given.folder) if part == "slowed" else ROOT
    began = time.monotonic()
    with (given.folder / f"{part}.txt").open("w") as printed:
        process = subprocess.Popen(command, cwd=where, env=environment(where), stdout=printed, stderr=subprocess.STDOUT)
        cut_short = _await(process, limit)
    if part == "record":
        shutil.copytree(ROOT / "baselines", given.folder / "baselines", dirs_exist_ok=True)
    return Ran(part, " ".join(command), process.returncode, round(time.monotonic() - began, 1), cut_short)


def environment(where: Path) -> dict[str, str]:
    """Variables of a part: modules of its checkout come before those of the user's own path."""
    path = os.pathsep.join(filter(None, (str(where), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def _await(process: subprocess.Popen[bytes], limit: float) -> bool:
    try:
        process.wait(limit)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    else:
        return False
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return True


def slowed_checkout(folder: Path) -> Path:
    """A copy of the checkout with a commit on top, in which each broadcast moves 5 % more."""
    copy = folder.resolve() / "slowed"
    if not copy.exists():
        _git(ROOT, "worktree", "prune")
        _git(ROOT, "worktree", "add", "--quiet", "--detach", str(copy))
        # The record may not have been committed yet, and belongs to this machine.
        shutil.copytree(ROOT / "baselines", copy / "baselines", dirs_exist_ok=True)
        source = (copy / PROGRAMS).read_text()
        if source.count(FAST) != 1:
            raise SystemExit(
                f"{PROGRAMS}: got {source.count(FAST)} lines {FAST.strip()!r}, expected one to make slower"
            )
        (copy / PROGRAMS).write_text(source.replace(FAST, SLOW))
        _git(copy, "commit", "--quiet", "--all", "--no-verify", "--message", "Broadcasts move 5 % more")
    return copy


def _git(where: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=tour", "-c", "user.email=tour@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=where, check=True)


def line_of(ran: Ran, printed: Path) -> str:
    """A part as a line: how it ended, and the last line that it printed."""
    lines = printed.read_text(errors="replace").split("\n")
    last = next((line.strip("= ") for line in reversed(lines) if line.strip()), "")
    ended = "cut short" if ran.cut_short else f"exit status {ran.status}"
    return f"{ran.part:<13}{ran.seconds:7.1f} s  {ended}: {last}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the parts that were asked for; 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR")
    parser.add_argument("--parts", nargs="+", choices=PARTS, metavar="NAME", help=", ".join(PARTS))
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"seconds of a part (default {LIMIT:g})")
    parser.add_argument("--nccl-tests", type=Path, metavar="DIR", help="nccl-tests' sources")
    parser.add_argument(
        "-k", dest="select", default="", metavar="EXPR", help="of the suites, those that pytest selects by this"
    )
    read = parser.parse_args(arguments)
    # What a shell runs in the background ignores Ctrl-C, and so would its parts, which could not print their summary.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parts = read.parts or [name for name in PARTS if name != "nccl-tests" or read.nccl_tests]
    if "nccl-tests" in parts and read.nccl_tests is None:
        parser.error("nccl-tests: add --nccl-tests DIR, with the sources of https://github.com/NVIDIA/nccl-tests")
    folder = read.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    given = Given(read.gpus, folder, read.nccl_tests and read.nccl_tests.resolve(), read.select)
    tour = folder / "tour.json"
    all_ran = {one["part"]: one for one in json.loads(tour.read_text())} if tour.exists() else {}
    for part in parts:
        ran = run(part, given, read.limit)
        all_ran[part] = asdict(ran)
        tour.write_text(json.dumps(list(all_ran.values()), indent=1) + "\n")
        print(line_of(ran, folder / f"{part}.txt"), flush=True)
    return int(any(all_ran[part]["status"] for part in parts))


if __name__ == "__main__":
    sys.exit(main())
