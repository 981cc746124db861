"""What the rule does on real GPUs: runs of the unchanged suite, and as many with one test slowed, in turn.

    python benchmarks/judge_trial.py --gpus N [--runs 10] [--slower 0.05] [--json FILE] [--check] [SUITE ...]

Every run judges all perf tests (of ``suites`` by default) against the recorded baselines. The unchanged ones should
raise no alarm. In each of the others one test spins on the device after its step for 5 % of the step's time; that test
should regress, and no other. It is drawn at random from those whose step takes 100 us or longer and which were slowed
least often so far. FILE keeps the runs, and those that it holds count: a trial may be spread over several machines of a
kind, with the same arguments. A figure that is worse as these GPUs are at their power limit raises no alarm, and does
not count as found either. A run whose outcome does not come from its verdicts, as where a test cannot run, ends the
trial with exit status 2; after Ctrl-C, which ends it with 130, the run in hand is missing and FILE holds the others.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

# Run as a script, the folder of the script is on the path and not the repository's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.pytest_command import pytest_command
from benchmarks.trial.runs import UNFIT, Figure, Run, holds, lines_of, summary, table
from pytest_gpuperf.baselines import json_files
from pytest_gpuperf.baselines.schema import BaselineError, LaunchInfo
from pytest_gpuperf.report import results_file
from pytest_gpuperf.verdicts.outcome import Outcome

ROOT = Path(__file__).resolve().parents[1]


class TrialError(Exception):
    """A run, or a file of runs, that tells nothing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is the same in all runs of a trial."""

    suites: tuple[str, ...]
    gpus: int
    slower: float
    seed: int


def run(plan: Plan, slowed: str | None) -> Run:
    """One run of the suites.

    Raises:
        TrialError: it judged nothing, or its outcome does not come from its verdicts.
    """
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        command = pytest_command(*plan.suites, f"--gpus={plan.gpus}", "-m", "perf")
        command.append(f"--gpuperf-json={file}")
        if slowed is not None:
            command += ["-p", "benchmarks.trial.slowing", f"--slow-test={slowed}", f"--slow-by={plan.slower}"]
        began = time.monotonic()
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        seconds = time.monotonic() - began
        try:
            found = results_file.load(file)
        except BaselineError as error:
            raise TrialError(f"{error}\n{done.stdout}") from error
    launches = found.candidate.launches.values()
    gpus = ", ".join(sorted({launch.gpus for launch in launches}))
    taken = Run(at, gpus, controls(launches), seconds, slowed, tuple(map(Figure.of, found.verdicts)))
    problem = unfit(taken, done.returncode)
    if problem:
        raise TrialError(f"{problem}\n{done.stdout}")
    return taken


def controls(launches: Iterable[LaunchInfo]) -> dict[str, float]:
    """Median seconds of the control workload, by name."""
    seconds: dict[str, list[float]] = {}
    for launch in launches:
        for name, value in launch.control.items():
            seconds.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in seconds.items()}


def unfit(run: Run, exit_status: int) -> str:
    """Why a run tells nothing of the rule; empty if it does."""
    if exit_status not in (0, 1):
        return f"pytest ended with exit status {exit_status}"
    if not run.figures:
        return "nothing was judged"
    telling_nothing = Counter(figure.outcome for figure in run.figures if Outcome.of(figure.outcome) in UNFIT)
    if telling_nothing:
        said = ", ".join(f"{count} {outcome}" for outcome, count in telling_nothing.items())
        return f"of {len(run.figures)} figures {said}: record baselines first"
    alarms = [figure for figure in run.figures if figure.is_alarm]
    if bool(alarms) != bool(exit_status):
        return f"{len(alarms)} figures should fail the run, and pytest ended with exit status {exit_status}"
    return ""


def kept(file: Path, plan: Plan) -> list[Run]:
    """The runs that the file holds.

    Raises:
        TrialError: it is no file of a trial, or of another one; or it cannot be written.
    """
    if not file.parent.is_dir():
        raise TrialError(f"{file} cannot be written: there is no folder {file.parent}")
    if not file.exists():
        return []
    try:
        data = json.loads(file.read_text())
        runs, told = [Run.from_json(one) for one in data["runs"]], data["plan"]
    except (ValueError, TypeError, KeyError) as error:
        raise TrialError(f"{file} is no file of a trial ({type(error).__name__}: {error}): name another") from error
    if told != (wanted := json.loads(json.dumps(asdict(plan)))):
        raise TrialError(f"{file} holds a trial of {told}, not of {wanted}: name another")
    return runs


def drawn(runs: Sequence[Run], seed: int) -> str | None:
    """The test that the next run slows; None if it is the turn of an unchanged one.

    Raises:
        TrialError: no test can be slowed.
    """
    if len(runs) % 2 == 0:
        return None
    if not runs[-1].slowable:
        raise TrialError("no test has a time of 100 us or more, which could be slowed")
    times = Counter(run.slowed for run in runs)
    fewest = min(times[test] for test in runs[-1].slowable)
    return random.Random(f"{seed}, {len(runs)}").choice([test for test in runs[-1].slowable if times[test] == fewest])


def take(plan: Plan, runs: Sequence[Run]) -> Run:
    """The next run.

    Raises:
        TrialError: it tells nothing, or other tests ran than before.
    """
    taken = run(plan, drawn(runs, plan.seed))
    if runs and (odd := taken.names ^ runs[0].names):
        raise TrialError(f"the run at {taken.at} and the first one have not the same figures: {sorted(odd)}")
    return taken


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line for each run; 1 if the rule's promises do not hold and that was to be checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", default=["suites"], metavar="SUITE")
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--runs", type=int, default=10, help="of each kind (default 10)")
    parser.add_argument("--slower", type=float, default=0.05, help="fraction of the step's time (default 0.05)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(argv)
    if options.runs < 1:
        parser.error(f"--runs must be 1 or more, got {options.runs}")
    plan = Plan(tuple(options.suites), options.gpus, options.slower, options.seed)
    runs: list[Run] = []
    try:
        if options.json is not None:
            runs = kept(options.json, plan)
        for line in table(runs):
            print(line)
        while len(runs) < 2 * options.runs:
            runs.append(take(plan, runs))
            if options.json is not None:
                data = {"plan": asdict(plan), "runs": [one.to_json() for one in runs]}
                json_files.replace(options.json, json.dumps(data, indent=1) + "\n")
            print(*lines_of(len(runs), runs[-1]), sep="\n", flush=True)
    except TrialError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(*summary(runs), f"interrupted after {len(runs)} of {2 * options.runs} runs", sep="\n")
        return 130
    print(*summary(runs), sep="\n")
    return int(options.check and not holds(runs))


if __name__ == "__main__":
    sys.exit(main())
