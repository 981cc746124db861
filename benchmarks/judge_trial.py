"""What the rule does on real GPUs: runs of the unchanged suite, and as many with one test slowed, in turn.

    python benchmarks/judge_trial.py --gpus N [--runs 10] [--slower 0.05] [--json FILE] [--check] [SUITE ...]

Every run judges all perf tests (of ``suites`` by default) against the recorded baselines. The unchanged ones should
raise no alarm. In each of the others one test, drawn at random from those whose step takes 100 us or longer, spins on
the device after its step for 5 % of the step's time; that test should regress, and no other. FILE keeps the runs, and
those that it holds count: a trial may be spread over several allocations of a machine. Exit status 2 if a run judged
nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

# Run as a script, the folder of the script is on the path and not the repository's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.trial.runs import Run, holds, summary, table
from pytest_gpuperf.verdicts import results, storage
from pytest_gpuperf.verdicts.baselines import BaselineError

ROOT = Path(__file__).resolve().parents[1]


class TrialError(Exception):
    """A run that tells nothing."""


def run(suites: Sequence[str], gpus: int, slowed: str | None, by: float) -> Run:
    """One run of the suites.

    Raises:
        TrialError: it judged nothing, or its outcome does not come from its verdicts.
    """
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        command = [
            sys.executable,
            "-m",
            "pytest",
            *suites,
            f"--gpus={gpus}",
            "-m",
            "perf",
            "-q",
            f"--gpuperf-json={file}",
        ]
        if slowed is not None:
            command += ["-p", "benchmarks.trial.slowing", f"--slow-test={slowed}", f"--slow-by={by}"]
        began = time.monotonic()
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        seconds = time.monotonic() - began
        try:
            verdicts = results.load(file).verdicts
        except BaselineError as error:
            raise TrialError(f"{error}\n{done.stdout}") from error
    if not verdicts:
        raise TrialError(f"nothing was judged\n{done.stdout}")
    found = Run.of(
        verdicts, at=at, host=socket.gethostname(), seconds=seconds, exit_status=done.returncode, slowed=slowed
    )
    if "missing" in found.outcomes:
        raise TrialError(f"record baselines first: {found.outcomes['missing']} figures have none\n{done.stdout}")
    if bool(found.alarms) and done.returncode == 0:
        raise TrialError(f"figures regressed and the run passed\n{done.stdout}")
    return found


def kept(file: Path | None) -> list[Run]:
    """The runs that the file holds."""
    if file is None or not file.exists():
        return []
    return [Run.from_json(data) for data in json.loads(file.read_text())["runs"]]


def drawn(runs: Sequence[Run], seed: int) -> str | None:
    """The test that the next run slows; None if it is the turn of an unchanged one."""
    if len(runs) % 2 == 0:
        return None
    return random.Random(f"{seed}, {len(runs)}").choice(runs[-1].slowable)


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
    runs = kept(options.json)
    print(*table(runs), sep="\n", end="\n" if runs else "")
    try:
        while len(runs) < 2 * options.runs:
            runs.append(run(options.suites, options.gpus, drawn(runs, options.seed), options.slower))
            if options.json is not None:
                storage.replace(options.json, json.dumps({"runs": [one.to_json() for one in runs]}, indent=1) + "\n")
            print(*table(runs)[-1 - len(runs[-1].false_alarms) :], sep="\n", flush=True)
    except TrialError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(*summary(runs), sep="\n")
    return int(options.check and not holds(runs))


if __name__ == "__main__":
    sys.exit(main())
