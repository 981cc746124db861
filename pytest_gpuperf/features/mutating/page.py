"""``--mutate-html``: a page with the source, each line coloured by the faults that tests notice there."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from pytest_gpuperf.features.mutating.coverage import Coverage, Outcome
from pytest_gpuperf.features.mutating.lines import join_names, show_path


@dataclass(frozen=True, slots=True)
class Line:
    """One line of source."""

    number: int
    text: str
    state: str
    """``unnoticed``, ``noticed``, ``unreached``, or empty: no fault was counted there."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class File:
    """One file of source."""

    name: str
    lines: tuple[Line, ...]
    noticed: int
    counted: int
    """How many faults a test could notice in it."""
    unreached: int

    @property
    def share(self) -> float | None:
        """The share of its faults that a test noticed, in percent; None if there are none."""
        return 100 * self.noticed / self.counted if self.counted else None


def render_html(coverage: Coverage, root: Path) -> str:
    """The whole page, which needs no other file and runs no script.

    Args:
        coverage: of the run.
        root: to which files are relative.
    """
    from jinja2 import Environment, StrictUndefined  # takes 30 ms, which other runs need not wait for

    template = (files("pytest_gpuperf.features.mutating") / "assets" / "page.html.j2").read_text("utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    shown = sorted(
        list_files(coverage, root), key=lambda file: (100.0 if file.share is None else file.share, file.name)
    )
    return environment.from_string(template).render(
        coverage=coverage,
        files=shown,
        noticed=len(coverage.of(Outcome.NOTICED)),
    )


def list_files(coverage: Coverage, root: Path) -> list[File]:
    """The files that have sites or calls that no program makes."""
    paths = {site.file for site in coverage.sites if site.file} | {call.file for call in coverage.unreached}
    return [_make_file(path, coverage, root) for path in sorted(paths)]


def _make_file(path: str, coverage: Coverage, root: Path) -> File:
    notes: dict[int, list[str]] = {}
    states: dict[int, str] = {}
    noticed = counted = 0
    for site in (one for one in coverage.list_worst_first() if one.file == path):
        missed, good = coverage.of(Outcome.UNNOTICED, site), coverage.of(Outcome.NOTICED, site)
        noticed += len(good)
        counted += len(good) + len(missed)
        part = f", tensor {site.part}" if site.part > 1 else ""
        over = f" over {site.over}" if site.over else ""
        note = f"{site.operation}{over}{part}: {len(good)} of {len(good) + len(missed)} faults noticed"
        if missed:
            note += f"; unnoticed: {', '.join(one.fault.kind for one in missed)}"
            note += f"; reached by {join_names(coverage.tests(site), verbose=False)}"
            states[site.line] = "unnoticed"
        elif good:
            states.setdefault(site.line, "noticed")
        notes.setdefault(site.line, []).append(note)
    calls = [call for call in coverage.unreached if call.file == path]
    for call in calls:
        states[call.line] = "unreached"
        notes.setdefault(call.line, []).append(f"no observed program calls {call.operation}")
    lines = tuple(
        Line(number, text, states.get(number, ""), tuple(notes.get(number, ())))
        for number, text in enumerate(_read_source(path), 1)
    )
    return File(show_path(path, root), lines, noticed, counted, len(calls))


def _read_source(path: str) -> list[str]:
    try:
        return Path(path).read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return []
