"""Writes the faults of the tables in ``benchmarks/mutants/tables`` as hunk files.

    python benchmarks/mutants/convert.py

Files of faults that are there already are replaced; no file is deleted. The record gets a line for each fault.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.mutants.fault import Fault  # noqa: E402
from benchmarks.mutants.hunk_file import FOLDER, LINES, PART, read, read_all  # noqa: E402

RECORD = ROOT / "docs" / "suites" / "faults.json"


def hunk(old: list[str], new: list[str]) -> list[str]:
    """Returns the changed lines, with the lines that both begin or end with as context."""
    least = min(len(old), len(new))
    head = next((n for n in range(least) if old[n] != new[n]), least)
    rest = least - head
    tail = next((n for n in range(rest) if old[-1 - n] != new[-1 - n]), rest)
    above, below = old[:head], old[len(old) - tail :]
    gone, come = old[head : len(old) - tail], new[head : len(new) - tail]
    changed = [f"-{line}" for line in gone] + [f"+{line}" for line in come]
    return [*(f" {line}" if line else "" for line in above), *changed, *(f" {line}" if line else "" for line in below)]


def lines_of(text: str, whole: bool) -> list[str]:
    """Returns the lines of a text, which ends with a line or within one."""
    if not text:
        return []
    assert text.endswith("\n") == whole, text
    return (text[:-1] if whole else text).split("\n")


def written(fault: Fault) -> str:
    """Returns the text of a fault's file."""
    whole = (fault.old or fault.new).endswith("\n")
    facts = [f"name: {fault.name}", f"module: {fault.module}"]
    facts += [f"equivalent: {fault.equivalent}"] if fault.equivalent else []
    facts += [f"needs: {fault.needs}"] if fault.needs else []
    facts += ["gpus: yes"] if fault.gpus else []
    body = hunk(lines_of(fault.old, whole), lines_of(fault.new, whole))
    return "\n".join([*facts, LINES if whole else PART, *body]) + "\n"


def faults_of(path: Path) -> tuple[Fault, ...]:
    """Returns the faults of a table."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    faults: tuple[Fault, ...] = module.FAULTS
    return faults


def main() -> None:
    """Converts all tables, and orders the record as the files are."""
    for table in sorted((ROOT / "benchmarks/mutants/tables").glob("[a-z]*.py")):
        folder = FOLDER / table.stem
        folder.mkdir(parents=True, exist_ok=True)
        faults = faults_of(table)
        names = [re.sub(r"[^a-z0-9]+", "-", fault.name.lower()).strip("-") for fault in faults]
        assert len(set(names)) == len(names)
        for name, fault in zip(names, faults, strict=True):
            (path := folder / f"{name}.diff").write_text(written(fault), encoding="utf-8")
            assert read(path) == fault, (path, read(path), fault)
    entries = {(one["subject"], one["fault"]): one for one in json.loads(RECORD.read_text(encoding="utf-8"))}
    order = [(subject, fault.name) for subject, faults in read_all().items() for fault in faults]
    kept = [
        json.dumps({**entries[key], "seconds": round(entries[key]["seconds"], 1)}) for key in order if key in entries
    ]
    RECORD.write_text("[\n" + ",\n".join(kept) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
