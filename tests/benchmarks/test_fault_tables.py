"""The faults fit the suites as they are, and the record has each fault on a line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
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


def test_programs_with_a_fault_parse_and_know_all_their_names(tmp_path: Path) -> None:
    """A fault would else be caught as what cannot be imported, whatever the suites check."""
    for subject, faults in FAULTS.items():
        (tmp_path / subject).mkdir()
        for fault in faults:
            if fault.in_suites:
                file = tmp_path / subject / f"{re.sub(r'[^a-zA-Z0-9]+', '-', fault.name)}.py"
                file.write_text(fault.applied_to(source(fault.module)), "utf-8")
    check = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select=F821,F823", "--quiet"]
    done = subprocess.run([*check, "--output-format=concise", tmp_path], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()) == (0, [])


def test_the_record_has_every_fault_and_no_other_a_line_each() -> None:
    text = (ROOT / "docs/suites/faults.json").read_text(encoding="utf-8")
    recorded = [(one["subject"], one["fault"]) for one in json.loads(text)]
    faults = [(subject, fault.name) for subject, of_subject in FAULTS.items() for fault in of_subject]
    assert recorded == faults, "run: python benchmarks/mutations.py --subject NAME --json docs/suites/faults.json"
    assert len(text.splitlines()) == len(faults) + 2
