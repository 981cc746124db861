"""How many realistic faults the suites catch.

    python benchmarks/mutations.py [--subject S ...] [--fault TEXT] [--json FILE] [--jobs N] [--sample N]

Each fault of ``benchmarks/mutants/faults`` is put into a program of the suites or into torch, in memory. The test that
docs/suites/faults.json says has caught it runs, and if that one passes its whole subject, until a test fails. They run
with the profile ``quick``, each test in its largest world. A fault is caught if a test fails. Each subject runs once
without a fault as well, and must pass, and so does each of these tests alone; with --sample nobody looks. Exits with 1
if fewer than 95 % are caught, with 2 if the figures cannot be trusted: tests that fail by themselves, a fault that does
not apply, or a module that no process imports.
Faults of what runs on GPUs alone are tried with ``PYTEST_ADDOPTS="--gpus 2"``, for example.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Container, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.mutants.fault import Fault  # noqa: E402
from benchmarks.mutants.hunk_file import FOLDER as FAULTS  # noqa: E402
from benchmarks.mutants.hunk_file import read_all  # noqa: E402
from benchmarks.mutants.trial import FOLDER, Trial  # noqa: E402
from benchmarks.pytest_command import pytest_command  # noqa: E402

RECORDED = ROOT / "docs" / "suites" / "faults.json"
LEAST = 0.95  # of the faults that are not equivalent
TIMEOUT = 600.0  # seconds for a subject; a suite that hangs has its own timeouts, which are shorter

Work = tuple[str, Fault | None, str]
"""A subject and a fault of it; without a fault, a test of the subject that runs alone, or its whole subject."""

CAUGHT, PASSED, EQUIVALENT, SKIPPED, UNTRUE = "caught", "passed", "equivalent", "skipped", "untrue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one fault."""

    subject: str
    fault: str
    outcome: str
    """``caught``; ``passed``: no test failed; ``equivalent``: not run; ``skipped``: what has the fault does not run
    here, because a library or GPUs are missing; ``untrue``: the trial itself went wrong."""
    test: str = ""
    """The first that failed."""
    message: str = ""
    seconds: float = 0.0

    def line(self) -> str:
        """The result for a terminal."""
        by = self.test.split("/")[-1] if self.outcome == CAUGHT else self.message
        return f"{self.outcome:<10} {self.subject:<22} {self.seconds:5.1f} s  {self.fault}  [{by}]"


def table(folder: Path = FAULTS) -> dict[str, tuple[Fault, ...]]:
    """The faults of each subject.

    Raises:
        ValueError: two faults of a subject have one name, or are one patch.
    """
    found = read_all(folder)
    for subject, faults in found.items():
        names = [fault.name for fault in faults]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{subject} has two faults of the name {twice[0]!r}: rename one")
        patches: dict[tuple[str, str, str], str] = {}
        for fault in faults:
            first = patches.setdefault((fault.module, fault.old, fault.new), fault.name)
            if first != fault.name:
                raise ValueError(f"{subject} has one patch twice, as {first!r} and {fault.name!r}: delete one")
    return found


def tried(subject: str, fault: Fault | None, tests: Sequence[str]) -> Result:
    """Runs the tests with the fault in place, or as they are."""
    name = "" if fault is None else fault.name
    if fault is not None and fault.equivalent:
        return Result(subject=subject, fault=name, outcome=EQUIVALENT, message=fault.equivalent)
    if fault is not None and fault.needs and importlib.util.find_spec(fault.needs) is None:
        return Result(subject=subject, fault=name, outcome=SKIPPED, message=f"{fault.needs} is not installed")
    if fault is not None and fault.gpus and "--gpus" not in os.environ.get("PYTEST_ADDOPTS", ""):
        return Result(subject=subject, fault=name, outcome=SKIPPED, message="its tests need GPUs")
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        trial = Trial(Path(folder))
        trial.begin(fault)
        began = time.monotonic()
        options = ["-x", "-p", "no:cacheprovider", "-p", "benchmarks.mutants.plugin", "--tb=short", "--smoke"]
        options += ["--hypothesis-profile=quick", "--hypothesis-seed=1", "--largest-worlds", "-W", "ignore", *tests]
        environ = {**os.environ, FOLDER: folder, "PYTHONPATH": str(ROOT)}
        try:
            done = subprocess.run(
                pytest_command(*options), cwd=ROOT, env=environ, capture_output=True, text=True, timeout=TIMEOUT
            )
        except subprocess.TimeoutExpired:
            message = f"no end after {TIMEOUT:g} s"
            return Result(subject=subject, fault=name, outcome=UNTRUE, message=message, seconds=TIMEOUT)
        seconds = time.monotonic() - began
        failure = json.loads(trial.failure.read_text(encoding="utf-8")) if trial.failure.exists() else None
        reached = fault is None or trial.reached.exists()
        ran = trial.passed.exists() or failure is not None
    outcome, test, message = PASSED, "", ""
    if failure is not None and reached:
        outcome, test, message = CAUGHT, failure["test"], failure["message"]
    elif not ran and not done.returncode:
        outcome, message = SKIPPED, "all tests of the subject skip here"
    elif done.returncode:
        outcome, message = UNTRUE, "\n".join((done.stdout + done.stderr).splitlines()[-30:])
    elif not reached:
        outcome, message = UNTRUE, f"no process imported {fault and fault.module}"
    return Result(subject=subject, fault=name, outcome=outcome, test=test, message=message, seconds=seconds)


def caught_before(path: Path = RECORDED) -> dict[tuple[str, str], str]:
    """Which test function is recorded to have caught each fault, by subject and fault."""
    entries = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return {
        (entry["subject"], entry["fault"]): entry["test"].partition("[")[0]
        for entry in entries
        if entry["outcome"] == CAUGHT
    }


def tried_again(subject: str, fault: Fault, before: Sequence[str], whole: Sequence[str]) -> Result:
    """Runs the test that caught the fault before, and if it does not now, or is gone, the whole subject."""
    first = tried(subject, fault, before)
    if first.outcome in (CAUGHT, EQUIVALENT):
        return first
    result = tried(subject, fault, whole)
    return replace(result, seconds=first.seconds + result.seconds)


def sample(
    faults: dict[str, tuple[Fault, ...]], before: Container[tuple[str, str]], count: int
) -> list[tuple[str, Fault]]:
    """So many of the faults that were caught before, evenly spread over the table."""
    caught = [
        (subject, fault)
        for subject, of_subject in sorted(faults.items())
        for fault in of_subject
        if (subject, fault.name) in before
    ]
    count = min(count, len(caught))
    return [caught[index * len(caught) // count] for index in range(count)]


def record(path: Path, result: Result, faults: dict[str, tuple[Fault, ...]]) -> None:
    """Puts a result into a file of them, in place of an earlier one; faults that no table has any more are left out."""
    entries = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    known = {(entry["subject"], entry["fault"]): entry for entry in entries}
    # What a test said of a fault it caught is for who reads the run: it names files of the machine.
    message = "" if result.outcome == CAUGHT else result.message
    known[result.subject, result.fault] = asdict(replace(result, message=message, seconds=round(result.seconds, 1)))
    order = [(subject, fault.name) for subject, of_subject in faults.items() for fault in of_subject]
    kept = [json.dumps(known[key]) for key in order if key in known]
    path.write_text("[\n" + ",\n".join(kept) + "\n]\n", encoding="utf-8")


def summary(results: Iterable[Result]) -> tuple[list[str], float]:
    """A line for each subject and one for all, and the share that is caught."""
    counts: dict[str, list[int]] = {}
    for result in results:
        if result.outcome in (CAUGHT, PASSED):
            of_subject = counts.setdefault(result.subject, [0, 0])
            of_subject[0] += result.outcome == CAUGHT
            of_subject[1] += 1
    lines = [f"{subject:<22} {caught:3d} of {of:3d}" for subject, (caught, of) in sorted(counts.items())]
    caught, of = (sum(count[index] for count in counts.values()) for index in (0, 1))
    share = caught / of if of else 1.0
    return [*lines, f"{'all':<22} {caught:3d} of {of:3d}, {share:.1%}"], share


def main(arguments: Sequence[str] | None = None) -> int:
    """Tries the faults, prints what became of each, and returns the exit status."""
    parser = argparse.ArgumentParser(description="how many realistic faults the suites catch")
    parser.add_argument("--subject", action="append", help="only this subject's; may be given again")
    parser.add_argument("--fault", default="", help="only faults whose name holds this text")
    parser.add_argument("--json", type=Path, help="a file for the results; it keeps those of other faults")
    parser.add_argument("--jobs", type=int, default=2, help="runs of pytest at once (default: %(default)s)")
    parser.add_argument("--sample", type=int, help="only so many of those that were caught before")
    given = parser.parse_args(arguments)
    faults = table()
    if unknown := sorted(set(given.subject or ()) - set(faults)):
        parser.error(f"no subject is called {unknown[0]!r}: {', '.join(faults)}")
    chosen = {subject: faults[subject] for subject in given.subject or faults}
    before = caught_before()
    work: list[Work] = []
    if given.sample:
        work += [(subject, fault, "") for subject, fault in sample(chosen, before, given.sample)]
    else:
        for subject, of_subject in chosen.items():
            picked = [fault for fault in of_subject if given.fault in fault.name]
            alone = {before.get((subject, fault.name), "") for fault in picked}
            work += [(subject, None, test) for test in sorted(alone | {""} if picked else alone)]
            work += [(subject, fault, "") for fault in picked]

    def outcome(subject: str, fault: Fault | None, alone: str) -> Result:
        whole = [f"suites/{subject}"]
        if fault is None:
            result = tried(subject, None, [alone] if alone else whole)
            # A test that is gone, or has no largest world any more, catches nothing: the whole subject is tried.
            return replace(result, outcome=SKIPPED) if alone and result.outcome == UNTRUE else result
        test = before.get((subject, fault.name))
        return tried_again(subject, fault, [test], whole) if test else tried(subject, fault, whole)

    began = time.monotonic()
    results = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for result in pool.map(lambda each: outcome(*each), work):
            if not result.fault and result.outcome not in (PASSED, SKIPPED):
                print(f"{result.subject} fails without a fault: {result.test} {result.message}", flush=True)
                pool.shutdown(cancel_futures=True)
                return 2
            if result.fault:
                print(result.line(), flush=True)
                results.append(result)
                if given.json:  # at once: a run of all faults takes more than an hour, and may be cut off
                    record(given.json, result, faults)
    lines, share = summary(results)
    print("\n".join(lines), f"\n{time.monotonic() - began:.0f} s", sep="")
    if any(result.outcome == UNTRUE for result in results):
        return 2
    return 0 if share >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
