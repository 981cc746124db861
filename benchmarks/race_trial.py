"""What races prove on real GPUs: runs of unchanged code, of slower code, and of a slower environment.

    python benchmarks/race_trial.py --gpus N --folder DIR [--record 10] [--unchanged 4] [--slowed 4] [--environment 2]
        [--against 2] [--check]

DIR keeps a small project in a git repository of its own, its baselines, and the runs so far. So a trial may be spread
over several machines of a kind: with the same DIR, a later call uses the record of an earlier one, and records only if
there is none.

The project has four perf tests: matrix products and copies on one rank, all_reduce of 16 MiB and of 1 KiB on all. Each
step repeats its operation 20 times. Code is slowed by a real change: one test's step repeats it 21 times, 5 % more. The
environment is slowed by NCCL_MAX_NCHANNELS=2. What is expected:

    unchanged     no figure regressed, none of the environment
    slowed        the slowed test regressed, no other
    environment   no figure regressed, one or more of the environment
    against       without a record: nothing regressed; and with one test slowed, that test and no other

With --check the exit status is 1 if a run in DIR came to anything else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

# Run as a script, the folder of the script is on the path and not the repository's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.pytest_command import pytest_command

PROGRAMS = """
import torch
import torch.distributed as dist

REPEATS = {"matmul": 20, "copy": 20, "all_reduce": 20, "small_all_reduce": 20}

def matmul(ctx):
    a = torch.randn(4096, 4096, device=ctx.device, dtype=torch.bfloat16)
    def step():
        for _ in range(REPEATS["matmul"]):
            torch.mm(a, a)
    return step

def copy(ctx):
    source = torch.ones(64 * 2**20, device=ctx.device)
    target = torch.empty_like(source)
    def step():
        for _ in range(REPEATS["copy"]):
            target.copy_(source)
    return step

def reduced(ctx, count, name):
    x = torch.zeros(count, device=ctx.device)
    def step():
        for _ in range(REPEATS[name]):
            dist.all_reduce(x)
    return step

def all_reduce(ctx):
    return reduced(ctx, 4 * 2**20, "all_reduce")

def small_all_reduce(ctx):
    return reduced(ctx, 256, "small_all_reduce")
"""

TESTS = """
import pytest
import programs

@pytest.mark.ranks(1)
def test_matmul(perf):
    perf.check(time=perf.measure(programs.matmul).time)

@pytest.mark.ranks(1)
def test_copy(perf):
    perf.check(time=perf.measure(programs.copy).time)

@pytest.mark.ranks({gpus})
def test_all_reduce(perf):
    perf.check(time=perf.measure(programs.all_reduce).time)

@pytest.mark.ranks({gpus})
def test_small_all_reduce(perf):
    perf.check(time=perf.measure(programs.small_all_reduce).time)
"""

SLOWED = ("matmul", "all_reduce", "copy", "small_all_reduce")
"""Tests that are slowed, in turn."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run, and what its figures came to."""

    kind: str
    slowed: str
    """The test whose program is slower; empty if none is."""
    gpus: str
    """Which GPUs they were."""
    seconds: float
    exit_status: int
    outcomes: dict[str, str]
    """By test."""
    launches: int
    """That were made beyond the first one: those in the run's own lines."""
    text: list[str]
    """The run's own lines, and those of figures that are not the same."""

    @property
    def as_expected(self) -> bool:
        """Whether it came to what the trial expects of its kind."""
        regressed = {test for test, outcome in self.outcomes.items() if outcome == "regressed"}
        lost = {test for test, outcome in self.outcomes.items() if outcome == "environment"}
        wanted = {f"test_{self.slowed}"} if self.slowed else set()
        return regressed == wanted and bool(lost) == (self.kind == "environment")


class Trial:
    """A folder with the project and its runs."""

    def __init__(self, folder: Path, gpus: int) -> None:
        self._folder = folder
        self._gpus = gpus
        self._runs_file = folder / "runs.json"
        if not (folder / ".git").exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "test_it.py").write_text(TESTS.format(gpus=gpus))
            (folder / "programs.py").write_text(PROGRAMS)
            (folder / "pytest.ini").write_text("[pytest]\n")
            (folder / ".gitignore").write_text("baselines*\nruns.json\nresults.json\n__pycache__\n.benchmarks\n")
            self._git("init", "--quiet")
            self._git("add", "--all")
            self._git("commit", "--quiet", "--message", "As fast as it is")
        self.runs = [Run(**one) for one in json.loads(self._runs_file.read_text())] if self._runs_file.exists() else []

    def record(self, launches: int) -> None:
        """Records baselines, unless the folder has some."""
        if (self._folder / "baselines").exists():
            return
        self._pytest("--update-baselines", f"--launches={launches}", "--reason=a trial", check=True)

    def next_slowed(self, kind: str) -> str:
        """The test that the next run of a kind slows: each in turn, over all calls."""
        return SLOWED[sum(run.kind == kind and bool(run.slowed) for run in self.runs) % len(SLOWED)]

    def run(self, kind: str, slowed: str = "", *more: str, **environ: str) -> Run:
        """One judged run; keeps it."""
        programs = self._folder / "programs.py"
        if slowed:
            programs.write_text(PROGRAMS.replace(f'"{slowed}": 20', f'"{slowed}": 21'))
        began = time.monotonic()
        try:
            done = self._pytest("--gpuperf-json=results.json", "-rA", *more, environ=environ)
        finally:
            programs.write_text(PROGRAMS)
        seconds = time.monotonic() - began
        results = json.loads((self._folder / "results.json").read_text())
        outcomes = {one["test"].partition("::")[2].partition("[")[0]: one["outcome"] for one in results["verdicts"]}
        gpus = ", ".join(sorted({launch.get("gpus", "") for launch in results["candidate"]["launches"].values()}))
        told = [line for line in done.stdout.splitlines() if line.startswith(("gpuperf: ", "test_it.py::", "the env"))]
        told += [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
        launches = sum(4 if "race against" in line else 1 for line in told if "launch" in line and "gpuperf: " in line)
        run = Run(kind, slowed, gpus, round(seconds, 1), done.returncode, outcomes, launches, told)
        self.runs.append(run)
        self._runs_file.write_text(json.dumps([asdict(one) for one in self.runs], indent=1) + "\n")
        return run

    def _pytest(
        self, *arguments: str, check: bool = False, environ: Mapping[str, str] = MappingProxyType({})
    ) -> subprocess.CompletedProcess[str]:
        command = pytest_command(f"--gpus={self._gpus}", "-p", "no:cacheprovider", *arguments)
        done = subprocess.run(
            command, cwd=self._folder, env={**os.environ, **environ}, capture_output=True, text=True, check=False
        )
        if done.returncode not in (0, 1) or (check and done.returncode):
            sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done

    def _git(self, *arguments: str) -> None:
        identity = ("-c", "user.name=trial", "-c", "user.email=trial@example.org")
        subprocess.run(["git", *identity, *arguments], cwd=self._folder, check=True)


def line_of(run: Run) -> str:
    """One run as a line."""
    counts = Counter(run.outcomes.values())
    said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    expected = "as expected" if run.as_expected else "NOT AS EXPECTED"
    what = f"{run.kind}{f' ({run.slowed})' if run.slowed else ''}"
    return f"{what:<28}{run.gpus[:12]:<14}{run.seconds:7.1f} s  {run.launches:3} more launches  {said}: {expected}"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line for each run; 1 if one is not as expected and that was to be checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR")
    parser.add_argument("--record", type=int, default=10, help="launches of the baseline (default 10)")
    for kind, default in (("unchanged", 4), ("slowed", 4), ("environment", 2), ("against", 2)):
        parser.add_argument(f"--{kind}", type=int, default=default, help=f"runs (default {default})")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(argv)
    trial = Trial(options.folder.resolve(), options.gpus)
    trial.record(options.record)
    for index in range(options.unchanged):
        print(line_of(trial.run("unchanged")), flush=True)
        if index < options.slowed:
            print(line_of(trial.run("slowed", trial.next_slowed("slowed"))), flush=True)
        if index < options.environment:
            print(line_of(trial.run("environment", NCCL_MAX_NCHANNELS="2")), flush=True)
        if index < options.against:
            print(line_of(trial.run("against", "", "--against=HEAD")), flush=True)
            print(line_of(trial.run("against", trial.next_slowed("against"), "--against=HEAD")), flush=True)
    return int(options.check and not all(run.as_expected for run in trial.runs))


if __name__ == "__main__":
    sys.exit(main())
