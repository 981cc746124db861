"""Options that no program uses, and reasons why some need none."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from tests.suites_options.calls import Subject
from tests.suites_options.parts import Part

FILE = "tests/suites_options/exclusions.toml"


@dataclass(frozen=True, slots=True)
class Coverage:
    """Names of options, ``callable`` or ``callable(argument)``."""

    covered: frozenset[str]
    uncovered: frozenset[str]


def coverage(parts: Iterable[Part], subjects: Mapping[str, Subject]) -> Coverage:
    """Which options of the parts some subject uses."""
    covered: set[str] = set()
    uncovered: set[str] = set()
    for part in parts:
        given = [found for subject in subjects.values() if (found := subject.options(part)) is not None]
        used = set().union(*given)
        (covered if given else uncovered).add(part.name)
        for option in part.options:
            (covered if option in used else uncovered).add(f"{part.name}({option})")
    return Coverage(frozenset(covered), frozenset(uncovered))


def exclusions(path: Path) -> dict[str, str]:
    """The reason for each pattern of names.

    Raises:
        ValueError: a pattern is there twice, or has no reason.
    """
    found: dict[str, str] = {}
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["exclusion"]:
        for pattern in entry["options"]:
            if pattern in found:
                raise ValueError(f"{path.name} has {pattern} twice: delete one")
            if not entry["reason"].strip():
                raise ValueError(f"{path.name} has no reason for {pattern}: write one")
            found[pattern] = entry["reason"]
    return found


def excludes(pattern: str, name: str) -> bool:
    """Whether a pattern names an option; that of a callable names all of its arguments too."""
    return fnmatchcase(name, pattern) or ("(" not in pattern and fnmatchcase(name.partition("(")[0], pattern))


def gaps(found: Coverage, reasons: Mapping[str, str], version: str) -> list[str]:
    """A line for each option that no program uses and no reason excludes."""
    return [
        f"torch {version} has {name}, and no program of the suites uses it: write one, with a test against one device, "
        f"or give the reason in {FILE}"
        for name in sorted(found.uncovered)
        if not any(excludes(pattern, name) for pattern in reasons)
    ]


def superfluous(found: Coverage, reasons: Mapping[str, str], *, newest: bool) -> list[str]:
    """A line for each exclusion of what a program uses, or, of the newest torch that is known, of what there is not."""
    lines = []
    for pattern in reasons:
        if any(excludes(pattern, name) for name in found.uncovered):
            continue
        if used := sorted(name for name in found.covered if excludes(pattern, name)):
            lines.append(f"{FILE} excludes {pattern}, and a program uses {used[0]}: delete the line")
        elif newest:
            lines.append(f"{FILE} excludes {pattern}, which torch does not have: delete the line")
    return lines
