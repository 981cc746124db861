"""The tables of faults fit the suites as they are, and the record has each fault."""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path

import pytest

from benchmarks.mutants import tables
from benchmarks.mutants.fault import Fault

ROOT = Path(__file__).parents[2]
SUBJECTS = [module.name for module in pkgutil.iter_modules(tables.__path__)]


def faults(subject: str) -> tuple[Fault, ...]:
    table: tuple[Fault, ...] = importlib.import_module(f"{tables.__name__}.{subject}").FAULTS
    return table


def source(module: str) -> str:
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file.read_text(encoding="utf-8")


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_fault_of_a_program_fits_its_text(subject: str) -> None:
    """A program that was rewritten would else lose its faults without a word."""
    for fault in faults(subject):
        if fault.in_suites:
            assert fault.applied_to(source(fault.module)) != source(fault.module)


def test_the_record_has_every_fault_and_no_other() -> None:
    recorded = json.loads((ROOT / "docs/suites/faults.json").read_text(encoding="utf-8"))
    of_tables = {(subject, fault.name) for subject in SUBJECTS for fault in faults(subject)}
    of_record = {(one["subject"], one["fault"]) for one in recorded}
    assert of_record == of_tables, "run: python benchmarks/mutations.py --subject NAME --json docs/suites/faults.json"
