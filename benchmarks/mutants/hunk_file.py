"""Reads a fault from its file: what it is called, which module it patches, and the lines before and after.

    name: a mean that is rounded to bfloat16
    module: suites.collectives.programs.plain
    @@ lines
         total = summed(shares)
    -    return total / count
    +    return (total / count).bfloat16()

The lines have no numbers, so code may move. ``@@ part of a line`` begins a text without its last line's end.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.mutants.fault import Fault

FOLDER = Path(__file__).parent / "faults"
"""A folder for each subject, a file for each fault."""
LINES, PART = "@@ lines", "@@ part of a line"
_REQUIRED = {"name", "module"}
_KNOWN = _REQUIRED | {"equivalent", "needs", "gpus"}


class HunkError(ValueError):
    """A file that is none of a fault: says which, and what is wrong."""


def read_all(folder: Path = FOLDER) -> dict[str, tuple[Fault, ...]]:
    """Returns the faults of each subject, in the order of their files.

    Raises:
        HunkError: a file is not as it should be.
    """
    subjects = sorted(path for path in folder.iterdir() if path.is_dir())
    return {path.name: tuple(read(file) for file in sorted(path.glob("*.diff"))) for path in subjects}


def read(path: Path) -> Fault:
    """Returns the fault of a file.

    Raises:
        HunkError: the file is not as it should be.
    """
    lines = path.read_text(encoding="utf-8").split("\n")
    begin = next((number for number, line in enumerate(lines) if line in (LINES, PART)), None)
    if begin is None:
        raise HunkError(f"{path} has no line {LINES!r} or {PART!r}: write one before the changed lines")
    facts = dict(line.partition(": ")[::2] for line in lines[:begin])
    if not _REQUIRED <= facts.keys() <= _KNOWN:
        raise HunkError(
            f"{path} has {sorted(facts)}: name and module must be there; {sorted(_KNOWN - _REQUIRED)} may be"
        )
    hunk = lines[begin + 1 : -1]
    if odd := [line for line in hunk if line[:1] not in ("", " ", "-", "+")]:
        raise HunkError(f"{path} has a line that begins with neither of ' ', '-' and '+': {odd[0]!r}")
    end = "\n" if lines[begin] == LINES else ""
    return Fault(
        name=facts["name"],
        module=facts["module"],
        old=_text(hunk, "-", end),
        new=_text(hunk, "+", end),
        equivalent=facts.get("equivalent", ""),
        needs=facts.get("needs", ""),
        gpus=facts.get("gpus") == "yes",
    )


def _text(hunk: list[str], side: str, end: str) -> str:
    """Returns one side of the changed lines; an empty line stands for one that both sides have."""
    lines = [line[1:] for line in hunk if line[:1] in ("", " ", side)]
    return "\n".join(lines) + end if lines else ""
