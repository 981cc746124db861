"""The command ``accept``: runs the phases, asks the doctor, and prints the verdict on the machine."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from pytest_gpuperf.baselines.schema import BaselineError, Baselines
from pytest_gpuperf.features.acceptance.command import QUICK_SOAK, SOAK, Wanted
from pytest_gpuperf.features.acceptance.hosts import accept_hosts
from pytest_gpuperf.features.acceptance.lines import format_lines, make_document
from pytest_gpuperf.features.acceptance.phases import (
    STARTED,
    Ended,
    Phase,
    choose_phases,
    find_results,
    make_command,
    run,
)
from pytest_gpuperf.features.acceptance.verdict import Acceptance, Fitness, Seen, judge_acceptance
from pytest_gpuperf.features.day_zero.references.shelf import Shelf
from pytest_gpuperf.features.doctor.diagnosis import diagnose
from pytest_gpuperf.features.doctor.finding import Finding
from pytest_gpuperf.features.doctor.gather import gather
from pytest_gpuperf.features.page.page_file import write_page
from pytest_gpuperf.hardware.device import HardwareError
from pytest_gpuperf.hardware.machine import Machine, find_devices
from pytest_gpuperf.report.results_file import Results, write
from pytest_gpuperf.suites_command import PACKAGE, find_suites_root

_UNFIT, _USAGE = 1, 2


def accept(wanted: Wanted) -> int:
    """Accept this machine; 0 if it is fit, also with remarks, 1 if it is unfit or not all was done, 2 for wrong use.

    Args:
        wanted: what the user asked for.
    """
    root = find_suites_root()
    if root is None:
        return _refuse(f"{PACKAGE} has no suites: install the wheel of pytest-gpuperf, or run it in a checkout")
    for file in filter(None, (wanted.report, wanted.json)):
        if problem := _say_unwritable(file):
            return _refuse(problem)
    if wanted.cluster is not None:
        if wanted.quick or wanted.soak is not None or wanted.report is not None:
            return _refuse("--quick, --soak and --report are about one machine: drop them, or --cluster")
        return accept_hosts(wanted, root, os.environ)
    try:
        machine = Machine.of(wanted.gpus)
        shelf = Shelf.open(machine.match) if machine.gpus else None
    except (HardwareError, BaselineError) as error:
        return _refuse(str(error))
    if wanted.gpus is None and not machine.gpus:
        return _refuse(
            "no GPU is visible, so there is no speed to judge: check nvidia-smi and CUDA_VISIBLE_DEVICES; "
            "`accept --gpus 0` checks only numbers, on CPUs"
        )
    _say(f"{machine.describe()}; {_describe_references(machine, shelf)}")
    with tempfile.TemporaryDirectory(prefix="gpuperf-accept-") as folder:
        acceptance, results = _accept(wanted, machine, root, Path(folder))
    print("", *format_lines(acceptance), sep="\n", flush=True)
    for line in _say_written(wanted, results, acceptance):
        _say(line)
    return _UNFIT if acceptance.fitness is Fitness.UNFIT or acceptance.partial else 0


def _accept(wanted: Wanted, machine: Machine, root: Path, folder: Path) -> tuple[Acceptance, Results]:
    """Run the phases, and judge what they found; a phase that is interrupted ends them."""
    soak = wanted.soak if wanted.soak is not None else QUICK_SOAK if wanted.quick or not machine.gpus else SOAK
    cores = len(os.sched_getaffinity(0))
    selected = choose_phases(len(machine.gpus), quick=wanted.quick, soak=soak, cores=cores)
    signal.signal(signal.SIGTERM, _interrupt)
    every: list[Results] = []
    failed, partial, number = "", "", 0
    findings: Sequence[Finding] = ()
    try:
        findings = diagnose(gather(find_devices(), counts=True))
        for number, phase in enumerate(selected):
            ended = _run(phase, root, folder, number)
            every += [] if ended.results is None else [ended.results]
            failed = failed or _say_failure(phase, ended)
    except KeyboardInterrupt:
        interrupted = find_results(_make_results_path(folder, number))
        every += [] if interrupted is None else [interrupted]
        partial = f"interrupted in {selected[number].name}"
    results = _join(every, machine)
    seen = Seen(results.verdicts, results.ran, findings, results.shown.get("matrices", ()), len(machine.gpus), failed)
    acceptance = judge_acceptance(seen, partial)
    return acceptance, replace(results, summary=make_document(acceptance))


def _run(phase: Phase, root: Path, folder: Path, number: int) -> Ended:
    results, log = _make_results_path(folder, number), folder / f"{number}.log"
    print(f"gpuperf: {phase.name} ...", end="", flush=True)
    began = time.monotonic()
    try:
        ended = run(make_command(phase, root, Path.cwd(), results), results, log)
    except KeyboardInterrupt:
        print(" interrupted", flush=True)
        raise
    ran = () if ended.results is None else ended.results.ran
    counts = ", ".join(
        f"{count} {end}" for end in ("passed", "failed", "skipped") if (count := sum(one.outcome == end for one in ran))
    )
    print(f" {counts or 'no test'} in {time.monotonic() - began:.0f} s", flush=True)
    return ended


def _say_failure(phase: Phase, ended: Ended) -> str:
    """Say what else went wrong in a phase: pytest ended otherwise than by passed and failed tests that it reported."""
    if ended.results is None or not ended.results.ran:
        return f"{STARTED} of {phase.name}: {ended.output}"
    unseen = ended.status == 1 and not any(one.outcome == "failed" for one in ended.results.ran)
    if ended.status not in (0, 1) or unseen:
        return f"pytest ended {phase.name} with status {ended.status}: {ended.output}"
    return ""


def _join(every: Sequence[Results], machine: Machine) -> Results:
    """Return one value of the results of all phases; metrics and launches are those of the last one."""
    if not every:
        return Results(Baselines(machine.key, machine.match), ())
    last = every[-1]
    return replace(last, ran=tuple(ran for results in every for ran in results.ran))


def _say_written(wanted: Wanted, results: Results, acceptance: Acceptance) -> list[str]:
    told = []
    for path, what in ((wanted.json, "results"), (wanted.report, "page")):
        if path is None:
            continue
        try:
            if what == "results":
                write(path, results)
            else:
                write_page(path, [("this machine", results)], Path("baselines"))
            told.append(f"{what} written to {path}")
        except BaselineError as error:
            told.append(f"{what} not written: {error}")
    if wanted.report is None and acceptance.fitness is not Fitness.FIT:
        told.append("all metrics and failures on one page: the same command with --report=page.html")
    return told


def _describe_references(machine: Machine, shelf: Shelf | None) -> str:
    if not machine.gpus:
        return "no GPU is visible, so only numbers are checked"
    kinds = sorted({gpu.name for gpu in machine.gpus})
    if len(kinds) > 1:
        return f"{' and '.join(kinds)} in one machine have no references, so what is known of neither is shown"
    if shelf is None:
        return f"no references of {kinds[0]}, so a model of the hardware judges what no baseline does"
    sources = shelf.references.sources.values()
    launches, machines = (sum(getattr(one, name) for one in sources) for name in ("launches", "machines"))
    return f"references are {launches} launches on {machines} machines with {kinds[0]}"


def _make_results_path(folder: Path, number: int) -> Path:
    return folder / f"{number}.json"


def _say_unwritable(path: Path) -> str:
    """Say why a file cannot be written; empty if it can."""
    folder = path.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if path.is_dir():
        return f"{path} is a folder: name a file"
    if not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        return f"{path} cannot be written: choose another folder"
    return ""


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _say(line: str) -> None:
    print(f"gpuperf: {line}", flush=True)


def _refuse(problem: str) -> int:
    print(f"error: {problem}", file=sys.stderr)
    return _USAGE
