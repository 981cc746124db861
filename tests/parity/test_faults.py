"""Faults are caught, the first wrong tensor is named, and the cause is right; right programs pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.parity.faults import FAULTS
from tests.whole_run import run_pytest, write

RUN = """
import json, pathlib, pytest
from tests.parity.faults import FAULTS

HERE = pathlib.Path(__file__).parent

def run(parity, name):
    fault = FAULTS[name]
    found = {}
    for wrong in (False, True):
        report = parity.report(fault.reference, fault.program, wrong, **fault.options)
        verdict = report.verdict
        found["wrong" if wrong else "right"] = {
            "ok": report.ok,
            "text": str(report),
            "first": verdict.first and verdict.first.title,
            "cause": verdict.cause.code if verdict.cause and verdict.explained is verdict.first else "unknown",
            "later": verdict.cause.code if verdict.cause else None,
            "says": verdict.cause.text if verdict.cause else "",
        }
    (HERE / (name.replace(" ", "_").replace("'", "") + ".json")).write_text(json.dumps(found))
"""
CASE = """
@pytest.mark.ranks({world}, timeout=60)
def test_{number}(parity):
    run(parity, {name!r})
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the fixture said of each fault: one run of pytest, since each loads torch."""
    folder = tmp_path_factory.mktemp("faults")
    cases = [CASE.format(world=fault.world, number=i, name=name) for i, (name, fault) in enumerate(FAULTS.items())]
    result = run_pytest(write(folder, {"test_faults.py": RUN + "".join(cases)}), timeout=900)
    return {name: _read(folder, name, result.text) for name in FAULTS}


def _read(folder: Path, name: str, text: str) -> Any:
    file = folder / (name.replace(" ", "_").replace("'", "") + ".json")
    return json.loads(file.read_text()) if file.exists() else text


@pytest.mark.parametrize("name", FAULTS)
def test_the_right_program_passes(found: dict[str, Any], name: str) -> None:
    assert found[name]["right"]["ok"], found[name]["right"]["text"]


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_caught_and_its_place_is_named(found: dict[str, Any], name: str) -> None:
    wrong = found[name]["wrong"]
    assert not wrong["ok"]
    assert wrong["first"] in FAULTS[name].first.split("|"), wrong["text"]


@pytest.mark.parametrize("name", FAULTS)
def test_the_cause_is_named_only_if_it_is_right(found: dict[str, Any], name: str) -> None:
    wrong = found[name]["wrong"]
    assert wrong["cause"] == FAULTS[name].cause, wrong["text"]
    assert FAULTS[name].words in wrong["says"], wrong["text"]
