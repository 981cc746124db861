"""What became of each test on ranks, as files keep it for whoever reads them later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import pytest

from pytest_gpuperf.baselines.plain import OMITTED
from pytest_gpuperf.report.keyword import RANKS_KEYWORD
from pytest_gpuperf.report.place import extract_message, find_place, format_failure
from pytest_gpuperf.report.properties import is_final

End: TypeAlias = Literal["passed", "failed", "skipped"]

TEXT_CHARACTERS = 20_000  # of a failure; a longer one loses its middle, since the cause stands at either end
TEXTS = 200  # failures that keep their text: a run that fails as a whole fails alike


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of one test."""

    test: str
    """Node id."""
    outcome: End
    seconds: float = 0.0
    """Duration of all its phases."""
    file: str = ""
    """Relative to the rootdir."""
    line: int = 0
    """1 and up; 0 if unknown."""
    reason: str = field(default="", metadata=OMITTED)
    """Why it failed, or did not run, on one line."""
    text: str = field(default="", metadata=OMITTED)
    """The failure, as pytest prints it."""
    sections: tuple[tuple[str, str], ...] = field(default=(), metadata=OMITTED)
    """Title and text of what the failure's report holds besides: output, roll call, the command that reruns it."""
    properties: Mapping[str, int | float | str] = field(default_factory=dict, metadata=OMITTED)
    """What the test recorded by pytest's ``record_property``."""


class RanTests:
    """Collects what became of the tests on ranks from their reports."""

    def __init__(self) -> None:
        self._ran: dict[str, Ran] = {}

    @property
    def tests(self) -> tuple[Ran, ...]:
        """In the order in which they began."""
        return tuple(self._ran.values())

    def take(self, report: pytest.TestReport) -> None:
        """Takes note of one phase of a test."""
        if not is_final(report) or RANKS_KEYWORD not in report.keywords:
            return
        place = find_place(report)
        before = self._ran.get(report.nodeid, Ran(report.nodeid, "passed", file=place.file, line=place.line or 0))
        ran = replace(before, seconds=before.seconds + report.duration, properties=_read_own_properties(report))
        if report.failed and before.outcome != "failed":
            ran = replace(ran, outcome="failed", reason=_find_first_line(report))
            if sum(bool(one.text) for one in self._ran.values()) < TEXTS:
                ran = replace(ran, text=_shorten(format_failure(report)), sections=_shorten_sections(report.sections))
        elif report.skipped and before.outcome == "passed":
            ran = replace(ran, outcome="skipped", reason=_find_skip_reason(report))
        self._ran[report.nodeid] = ran


def _read_own_properties(report: pytest.TestReport) -> dict[str, int | float | str]:
    """Return what the test itself recorded; names of this plugin's own properties begin with its name."""
    return {
        name: value
        for name, value in report.user_properties
        if not name.startswith("gpuperf") and isinstance(value, (int, float, str))
    }


def _find_first_line(report: pytest.TestReport) -> str:
    return next((line.strip() for line in extract_message(report).splitlines() if line.strip()), "")


def _find_skip_reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(getattr(report, "wasxfail", ""))


def _shorten_sections(sections: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple((title, _shorten(text)) for title, text in sections)


def _shorten(text: str) -> str:
    if len(text) <= TEXT_CHARACTERS:
        return text
    half = TEXT_CHARACTERS // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"
