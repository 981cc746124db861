"""``python -m pytest_gpuperf doctor``: what is wrong with this machine, or with another one's facts."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pytest_gpuperf.command_options import Commands


def add(commands: Commands) -> None:
    """Adds the command."""
    command = commands.add_parser("doctor", help="look for what is wrong with this machine; exit code 1 if it blocks")
    command.set_defaults(run=_run_doctor)
    command.add_argument("--json", action="store_true", help="print facts and findings as JSON")
    command.add_argument("--suggest", action="store_true", help="print NCCL settings for this hardware, with reasons")
    command.add_argument("--facts", type=Path, metavar="FILE", help="diagnose what --json printed on another machine")


def _run_doctor(options: argparse.Namespace) -> tuple[list[str], bool]:
    """Returns what it found; done means that nothing blocks multi-GPU work."""
    from pytest_gpuperf.features.doctor import facts_file
    from pytest_gpuperf.features.doctor.diagnosis import blocks, diagnose
    from pytest_gpuperf.features.doctor.gather import gather
    from pytest_gpuperf.features.doctor.lines import format_suggestions, make_document, report
    from pytest_gpuperf.features.doctor.suggest import suggest
    from pytest_gpuperf.hardware.machine import find_devices

    facts = gather(find_devices(), counts=True) if options.facts is None else facts_file.load(options.facts)
    findings = diagnose(facts)
    settings = suggest(facts) if options.suggest else None
    if options.json:
        print(json.dumps(make_document(facts, findings, settings), indent=1))  # whole: a line may be long
        return [], not blocks(findings)
    if settings is not None:
        return format_suggestions(facts, settings), True
    return report(facts, findings), not blocks(findings)
