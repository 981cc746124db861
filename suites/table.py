"""The table in docs/suites/README.md, and the faults that each subject's page counts.

    python -m suites.table           writes them
    python -m suites.table --check   exits with 1 if a page is out of date

The numbers come from a collection of the suites and from the record of caught faults.

A variant is a test with its world size and other parameters. What a test is, its marks tell, so that the numbers are
the same on a machine without GPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from suites.shared.dealing import DEALT

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "suites" / "README.md"
FAULTS = ROOT / "docs" / "suites" / "faults.json"
"""What ``benchmarks/mutations.py --json`` wrote last."""
BEGIN, END = "<!-- written by python -m suites.table -->\n", "<!-- end of the table -->\n"
CAUGHT = re.compile(r"^Recorded faults caught: .*$", re.MULTILINE)
"""The line of a subject's page that has its faults. A page may lack it."""
COMMAND = "python -m suites.table"
OF_MACHINE = "port"
"""The parameter whose values this machine's devices are: its variants count as one, on every machine."""


@dataclass(slots=True)
class Row:
    """What is counted of one subject."""

    everywhere: int = 0
    """Variants that run on CPUs and on GPUs."""
    on_gpus: int = 0
    """Variants that need GPUs."""
    of_speed: int = 0
    """Perf tests' variants."""
    drawn: set[str] = field(default_factory=set)
    """Tests that hypothesis draws examples for, by name."""
    tests: set[str] = field(default_factory=set)
    """The node ids of all variants."""
    machines: set[str] = field(default_factory=set)
    """Tests that were counted once for all devices of the machine, by name."""
    examples: int = 0
    """Examples of all variants, with the profile ``ci``."""
    caught: int = 0
    """Faults that the subject's tests are recorded to catch."""
    faults: int = 0
    """Faults that were tried, but for those that no test could catch."""

    def add(self, item: pytest.Item) -> None:
        """Counts a variant."""
        if (name := _on_any_machine(item)) in self.machines:
            return
        if name:
            self.machines.add(name)
        ranks = item.get_closest_marker("ranks")
        if item.get_closest_marker("perf") is not None:
            self.of_speed += 1
        elif ranks is not None and ranks.kwargs.get("device") == "cuda":
            self.on_gpus += 1
        else:
            self.everywhere += 1
        self.tests.add(item.nodeid)
        if isinstance(item, pytest.Function) and DEALT in item.stash:
            self.drawn.add(f"{item.path.name}::{item.originalname}")
            self.examples += item.stash[DEALT]

    def cells(self) -> list[str]:
        """The row's numbers; nothing for 0."""
        numbers = (self.everywhere, self.on_gpus, self.of_speed, len(self.drawn), self.examples)
        caught = f"{self.caught} of {self.faults}" if self.faults else ""
        return [*(str(number) if number else "" for number in numbers), caught]


def _on_any_machine(item: pytest.Item) -> str:
    """The name of a test that has a variant for each of the machine's devices; empty for any other test."""
    if not isinstance(item, pytest.Function) or OF_MACHINE not in item.fixturenames:
        return ""
    return f"{item.path.name}::{item.originalname}"


class Counting:
    """A plugin of pytest that counts what is collected, by subject."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    @pytest.hookimpl(trylast=True)  # when suites/conftest.py has shared the examples among variants
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Counts the items of subjects; tests beside them are no subject's."""
        for item in session.items:
            folder = item.path.parent
            if folder.parent == ROOT / "suites":
                self.rows.setdefault(folder.name, Row()).add(item)


def table(rows: Iterable[tuple[str, Row]]) -> str:
    """The rows as Markdown."""
    heads = ["subject", "tests on CPUs and GPUs", "on GPUs only", "of speed", "drawn tests", "examples in CI"]
    heads.append("faults caught")
    lines = [heads, ["---"] * len(heads)]
    lines += [[f"[{name}]({name}.md)", *row.cells()] for name, row in sorted(rows)]
    return "".join(f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in line)}|\n" for line in lines).replace(
        " --- ", "---"
    )


def replaced(page: str, rows: str) -> str:
    """The page with these rows between its markers.

    Raises:
        ValueError: a marker is missing.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN.strip()!r} and {END.strip()!r}: the table goes between them")
    return f"{before}{begin}{rows}{end}{after}"


def with_faults(page: str, name: str, row: Row) -> str:
    """Return the page of a subject with its number of faults."""
    of = f"{row.caught} of {row.faults} (in `benchmarks/mutants/faults/{name}`)."
    return CAUGHT.sub(f"Recorded faults caught: {of if row.faults else 'none are recorded.'}", page)


def pages(rows: dict[str, Row]) -> dict[Path, tuple[str, str]]:
    """Return the present text of each page, and the text that it should have."""
    found = {PAGE: (text := PAGE.read_text(encoding="utf-8"), replaced(text, table(rows.items())))}
    for name, row in rows.items():
        path = PAGE.with_name(f"{name}.md")
        if path.is_file():
            found[path] = (text := path.read_text(encoding="utf-8"), with_faults(text, name, row))
    return found


def counted() -> dict[str, Row]:
    """Collects the suites, in this process."""
    counting = Counting()
    options = ["--collect-only", "-qq", "--hypothesis-profile=ci", "-p", "no:cacheprovider"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = pytest.main([*options, f"--rootdir={ROOT}", str(ROOT / "suites")], plugins=[counting])
    if code != pytest.ExitCode.OK:
        sys.exit(f"{said.getvalue()}the suites could not be collected: pytest exits with {int(code)}")
    return counting.rows


def add_faults(rows: dict[str, Row], recorded: Path) -> None:
    """Adds the faults that are recorded for the subjects of these rows; a subject that was skipped has none.

    Raises:
        SystemExit: a test that is recorded to have caught one is gone, or has another name.
    """
    for entry in json.loads(recorded.read_text(encoding="utf-8")):
        row = rows.get(entry["subject"])
        if row is not None and entry["outcome"] in ("caught", "passed"):
            row.faults += 1
            row.caught += entry["outcome"] == "caught"
            if entry["outcome"] == "caught" and entry["test"] not in row.tests:
                sys.exit(
                    f"{recorded.name}: the fault {entry['fault']!r} was caught by {entry['test']}, which is no test "
                    f"now. Try it again: python benchmarks/mutations.py --subject {entry['subject']} "
                    f"--fault {entry['fault']!r} --json docs/suites/faults.json"
                )


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the table and the pages' numbers, or checks them."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="the numbers in docs/suites/*.md")
    parser.add_argument("--check", action="store_true", help="report the first page that is out of date, write nothing")
    check = parser.parse_args(arguments).check
    rows = counted()
    if FAULTS.is_file():
        add_faults(rows, FAULTS)
    for path, (old, new) in pages(rows).items():
        if new == old:
            continue
        if check:
            sys.exit(f"{path.relative_to(ROOT)} is out of date, write its numbers again: {COMMAND}")
        path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
