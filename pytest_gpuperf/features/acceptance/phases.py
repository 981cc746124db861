"""The runs of pytest that an acceptance is made of: which tests each selects, and what it found."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.baselines.schema import BaselineError
from pytest_gpuperf.features.recovery.recovering import recover
from pytest_gpuperf.report.results_file import Results, load
from pytest_gpuperf.report.run_journal import RunJournalError
from pytest_gpuperf.suites_command import make_suites_command

FIRST_LOOK = ("health", "memory_hierarchy", "host", "network", "nvlink", "collectives", "llm_step")
"""Suites whose speed a quick acceptance measures: the machine's parts, and a whole step."""

FIRST_NUMBERS = ("health", "collectives", "data_parallel", "nvlink", "tensor_parallel")
"""Suites whose results a quick acceptance checks."""

ON_CPUS = ("collectives", "data_parallel", "health")
"""Suites whose results are checked on a machine without GPUs: in half a minute on two cores."""

LEFT_OUT = ("tensor_parallel::test_micro_pipeline", "serving::test_prompts_apart")
"""Tests of speed that take long and tell of the machine what others do, too: they compile, or depend on the host."""

LEFT_OUT_AT_FIRST = (
    "collectives::test_curve",
    "collectives::test_many_small",
    "collectives::test_bytes_over_nvlink",
    "llm_step::test_over",
)
"""Those that a quick acceptance leaves out, too: large and small sizes and one step over the links are measured."""

_LAST_LINES = 12
"""Lines of a log that a phase which failed shows."""

WORKERS = 8
"""At most so many tests of correctness run at a time."""

STARTED = "pytest did not start the tests"


@dataclass(frozen=True, slots=True)
class Phase:
    """A run of pytest over some of the suites."""

    name: str
    arguments: Sequence[str]
    suites: Sequence[str] = ()
    """Their folders; all if there are none."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A phase that has ended."""

    results: Results | None
    """What it found; None if it found nothing."""
    status: int
    """The exit status of pytest's process; below 0 for a signal."""
    output: str
    """The last lines that it printed."""


def choose_phases(gpus: int, *, quick: bool, soak: float, cores: int) -> list[Phase]:
    """Return the phases of an acceptance in order.

    Args:
        gpus: how many are accepted; 0 for none.
        quick: whether a first look is enough.
        soak: seconds of the soak.
        cores: that this process may use.
    """
    workers = max(1, min(WORKERS, cores // 2 if gpus else cores))
    common = ["--gpus", str(gpus), "--largest-worlds", "--no-strict-baselines", "--environment=warn"]
    numbers = [*common, "-m", "not perf and (not long or soak)", "--hypothesis-profile=quick", f"--soak={soak:g}"]
    numbers += ["-n", str(workers), "--dist", "worksteal"]
    if not gpus:
        return [Phase("numbers on CPUs", numbers, ON_CPUS)]
    left_out = [*LEFT_OUT, *(LEFT_OUT_AT_FIRST if quick else ())]
    speed = [*common, "-m", "perf and not long", *(f"--deselect={_make_node_id(name)}" for name in left_out)]
    return [
        Phase("numbers", numbers, FIRST_NUMBERS if quick else ()),
        Phase("speed", speed, FIRST_LOOK if quick else ()),
    ]


def make_command(phase: Phase, root: Path, folder: Path, results: Path) -> list[str]:
    """Return the command of a phase.

    Args:
        phase: to run.
        root: the folder that holds ``suites``.
        folder: the user's current one.
        results: the file for what the phase finds.
    """
    quiet = ["-q", "--no-header", "--no-summary", "--tb=no", "-p", "no:cacheprovider", "-p", "no:benchmark"]
    command = make_suites_command([*phase.arguments, *quiet, f"--gpuperf-json={results}"], root, folder)
    if not phase.suites:
        return command
    there = [str(path) for name in phase.suites if (path := root / "suites" / name).is_dir()]
    place = command.index(str(root / "suites"))
    return [*command[:place], *there, *command[place + 1 :]]


def run(command: Sequence[str], results: Path, log: Path) -> Ended:
    """Run a phase to its end, in a new session; an interrupt goes to pytest once, which then ends the phase.

    Args:
        command: of the phase.
        results: the file that the command writes.
        log: takes what it prints.

    Raises:
        KeyboardInterrupt: the user interrupted it; what it found is in the file.
    """
    with log.open("ab") as output:
        # The current folder is the user's: hypothesis keeps its examples with the log.
        environ = {**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(log.parent / "hypothesis")}
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=environ
        )
        try:
            status = process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            _wait(process)
            raise
    return Ended(find_results(results), status, read_tail(log))


def find_results(results: Path) -> Results | None:
    """Return what a phase wrote, or what the journal of a killed one holds; None if there is neither."""
    try:
        return load(results)
    except BaselineError:
        pass
    devnull = os.open(os.devnull, os.O_WRONLY)
    kept = os.dup(1)
    try:
        os.dup2(devnull, 1)  # pytest prints the replay of what is recovered
        recover(results, None)
        return load(results)
    except (BaselineError, RunJournalError, OSError):
        return None
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(devnull)


def read_tail(log: Path) -> str:
    """Return the last lines of a log."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-_LAST_LINES:])
    except OSError:
        return ""


def _make_node_id(name: str) -> str:
    """Return what the node ids of a test begin with, given its subject and its function."""
    subject, _, function = name.partition("::")
    return f"suites/{subject}/test_performance.py::{function}"


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Wait for a phase that was interrupted; a second interrupt kills it."""
    try:
        process.wait()
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
