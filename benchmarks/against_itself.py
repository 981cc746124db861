"""Races of a commit against itself: how often is code accused that has not changed?

    python benchmarks/against_itself.py [--runs 60] [--steps NAME ...] [--gpus N] [--json FILE] [--check]

Each run is a whole run of pytest with ``--against=HEAD`` in a small git repository. Its tests time steps that depend on
the host: dictionaries, sets, strings, objects and small layers of torch on one rank, and with --gpus kernels so small
that the host cannot launch them fast enough. Such steps depend on where a process has its memory and in which order it
has its sets, so they show whether launches of an arm are alike.

A row of the table is a step: how many runs called it slower (accused), faster, the same, or did not decide, and what
the races measured: the mean of the differences between the arms, with its standard error, and their spread. A mean
other than 0 is a difference between the arms themselves. The last row counts runs in which any step was accused.

The promise is one such run in 100 at most. With --check the exit status is 1 if more runs than that were accused.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# Run as a script, the folder of the script is on the path and not the repository's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.pytest_command import pytest_command

PROGRAMS = """
import torch


class Point:
    def __init__(self, x):
        self.x = x

    def next(self):
        return self.x + 1


def dictionary(ctx):
    names = [f"name {number}" for number in range(5000)]
    table = {name: number for number, name in enumerate(names)}
    return lambda: sum(table[name] for name in names)


def sets(ctx):
    one, other = {f"name {number}" for number in range(3000)}, {f"name {number}" for number in range(0, 6000, 2)}
    return lambda: len(one & other) + len(one | other)


def strings(ctx):
    words = [f"word {number}" for number in range(2000)]
    return lambda: len(" ".join(word.upper() for word in words).split())


def objects(ctx):
    points = [Point(number) for number in range(3000)]
    return lambda: sum(point.next() for point in points)


def layers(ctx):
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(8)))
    batch = torch.ones(4, 16)

    def step():
        with torch.no_grad():
            for _ in range(5):
                model(batch)

    return step


def kernels(ctx):
    numbers = torch.ones(16, device=ctx.device)

    def step():
        for _ in range(200):
            numbers.mul_(1.0)

    return step
"""

TEST = """
@pytest.mark.ranks(1)
def test_{step}(perf):
    perf.check(time=perf.configured(samples=20, budget=0.1).measure(programs.{step}).time)
"""

STEPS = ("dictionary", "sets", "strings", "objects", "layers")
ON_GPUS = ("kernels",)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of pytest."""

    seconds: float
    outcomes: dict[str, str]
    """By step."""
    changes: dict[str, float]
    """What the race measured of the present code against the same code, by step; above 0 is better."""
    launches: dict[str, int]
    """Launches of each arm, by step."""

    @property
    def accused(self) -> bool:
        """Whether a step was accused."""
        return "regressed" in self.outcomes.values()


def make(folder: Path, steps: Sequence[str]) -> None:
    """Makes the repository with the tests of these steps."""
    tests = "".join(TEST.format(step=step) for step in steps)
    (folder / "programs.py").write_text(PROGRAMS)
    (folder / "test_it.py").write_text(f"import programs\nimport pytest\n{tests}")
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / ".gitignore").write_text("*.json\n__pycache__\n.benchmarks\nbaselines\n")
    identity = ("-c", "user.name=benchmark", "-c", "user.email=benchmark@example.org")
    for command in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "--message", "The only commit")):
        subprocess.run(["git", *identity, *command], cwd=folder, check=True)


def run_once(folder: Path, gpus: int, more: Sequence[str] = ()) -> Run:
    """Races the repository against itself."""
    command = pytest_command(
        f"--gpus={gpus}", "-p", "no:cacheprovider", "--against=HEAD", "--gpuperf-json=results.json", *more
    )
    began = time.monotonic()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return read(folder / "results.json", time.monotonic() - began)


def read(results: Path, seconds: float) -> Run:
    """What the results of a race say of each step."""
    verdicts = {
        one["test"].partition("::test_")[2].partition("[")[0]: one
        for one in json.loads(results.read_text())["verdicts"]
    }
    raced = {step: one["code"] for step, one in verdicts.items() if one.get("code") is not None}
    return Run(
        round(seconds, 1),
        {step: one["outcome"] for step, one in verdicts.items()},
        {step: code["change"] for step, code in raced.items()},
        {step: code["launches"] for step, code in raced.items()},
    )


def table(runs: Sequence[Run]) -> list[str]:
    """The runs in lines, one for each step."""
    title = ("step", "runs", "accused", "faster", "same", "open", "mean difference", "spread", "launches of each arm")
    lines = ["{:<12}{:>6}{:>9}{:>8}{:>6}{:>6}{:>18}{:>9}{:>22}".format(*title)]
    for step in runs[0].outcomes:
        outcomes = Counter(run.outcomes[step] for run in runs)
        found = [run.changes[step] for run in runs if step in run.changes]
        launches = statistics.fmean([run.launches[step] for run in runs if step in run.launches] or [0])
        spread = statistics.stdev(found) if len(found) > 1 else 0.0
        error = spread / math.sqrt(max(1, len(found)))
        mean = f"{statistics.fmean(found or [0.0]):+.2%} ± {error:.2%}"
        counts = [outcomes[name] for name in ("regressed", "improved", "same")]
        counts.append(len(runs) - sum(counts))
        lines.append(
            f"{step:<12}{len(runs):>6}{counts[0]:>9}{counts[1]:>8}{counts[2]:>6}{counts[3]:>6}{mean:>18}{spread:>9.2%}"
            f"{launches:>22.1f}"
        )
    accused = sum(run.accused for run in runs)
    seconds = statistics.median(run.seconds for run in runs)
    lines.append(f"{'any of them':<12}{len(runs):>6}{accused:>9}    (median of {seconds:.1f} s a run)")
    return lines


def allowed(runs: int) -> int:
    """The largest number of accused runs that does not refute the promise of 1 % with a certainty of 95 %."""
    chance, count = 0.99**runs, 0
    total = chance
    while total < 0.95:
        count += 1
        chance *= (runs - count + 1) / count * 0.01 / 0.99
        total += chance
    return count


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a table; 1 if the promise is refuted and that was to be checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=60, help="default 60")
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--steps", nargs="+", choices=(*STEPS, *ON_GPUS), help="default: all that the device can run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add the runs to this file, and count those in it")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(argv)
    runs: list[Run] = []
    if options.json is not None and options.json.exists():
        runs = [Run(**one) for one in json.loads(options.json.read_text())]
    with tempfile.TemporaryDirectory() as name:
        make(Path(name), options.steps or (*STEPS, *(ON_GPUS if options.gpus else ())))
        for _ in range(options.runs):
            runs.append(run_once(Path(name), options.gpus))
            if options.json is not None:
                options.json.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n")
    print("\n".join(table(runs)))
    return int(options.check and sum(run.accused for run in runs) > allowed(len(runs)))


if __name__ == "__main__":
    sys.exit(main())
