"""The table of inputs against suites: read, checked, and printed by ``python -m tests.suites_inputs.table``."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = "tests/suites_inputs/inputs.toml"
TESTED, NONE, GAP = "yes", "-", "GAP"


@dataclass(frozen=True, slots=True)
class Input:
    """A class of inputs."""

    name: str
    tests: Mapping[str, str]
    """The test of each suite that has such inputs, by suite."""
    none: Mapping[str, str]
    """Why a suite has no such inputs, by suite."""
    gaps: Sequence[str]
    """Suites that lack a test."""

    def cell(self, subject: str) -> str:
        """What the table shows of a suite."""
        return TESTED if subject in self.tests else GAP if subject in self.gaps else NONE


def read(path: Path) -> list[Input]:
    """All classes, in the file's order."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["input"]
    return [Input(entry["name"], entry["tests"], entry["none"], entry["gaps"]) for entry in entries]


def subjects(inputs: Sequence[Input]) -> list[str]:
    """Suites that some class names."""
    return sorted({subject for one in inputs for subject in (*one.tests, *one.none, *one.gaps)})


def complaints(inputs: Sequence[Input], suites: Path) -> Iterator[str]:
    """What is wrong with the table, and how to mend it."""
    for one in inputs:
        for subject in subjects(inputs):
            times = (subject in one.tests) + (subject in one.none) + (subject in one.gaps)
            if times != 1:
                yield f"{FILE}, {one.name}: {subject} stands in {times} of tests, none and gaps: put it in one of them"
        for subject, test in one.tests.items():
            file, _, name = test.partition("::")
            path = (suites / subject / file).resolve()
            if not path.is_file() or name not in _functions(path):
                yield f"{FILE}, {one.name}: {subject} has no {test}: name the test that has such inputs, or list a gap"


def _functions(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


def lines(inputs: Sequence[Input]) -> list[str]:
    """A row for each suite, a column for each class, and the gaps by name."""
    width = max(len(subject) for subject in subjects(inputs))
    legend = [f"{number}: {one.name}" for number, one in enumerate(inputs, start=1)]
    head = " " * width + "".join(f"{number:>5}" for number in range(1, len(inputs) + 1))
    rows = [
        f"{subject:<{width}}" + "".join(f"{one.cell(subject):>5}" for one in inputs) for subject in subjects(inputs)
    ]
    gaps = [f"no test of {one.name}: {', '.join(one.gaps)}" for one in inputs if one.gaps]
    return [*legend, "", head, *rows, "", *gaps]


if __name__ == "__main__":
    print("\n".join(lines(read(ROOT / FILE))))
