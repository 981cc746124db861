"""The faults fit the suites as they are, and the record has each fault on a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.mutants.hunk_file import read_all

ROOT = Path(__file__).parents[2]
FAULTS = read_all()


def source(module: str) -> str:
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file.read_text(encoding="utf-8")


@pytest.mark.parametrize("subject", FAULTS)
def test_every_fault_of_a_program_fits_its_text(subject: str) -> None:
    """A program that was rewritten would else lose its faults without a word."""
    for fault in FAULTS[subject]:
        if fault.in_suites:
            assert fault.applied_to(source(fault.module)) != source(fault.module)


def test_the_record_has_every_fault_and_no_other_a_line_each() -> None:
    text = (ROOT / "docs/suites/faults.json").read_text(encoding="utf-8")
    recorded = [(one["subject"], one["fault"]) for one in json.loads(text)]
    faults = [(subject, fault.name) for subject, of_subject in FAULTS.items() for fault in of_subject]
    assert recorded == faults, "run: python benchmarks/mutations.py --subject NAME --json docs/suites/faults.json"
    assert len(text.splitlines()) == len(faults) + 2
