"""Writes a page of results, at the end of a run or from files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_gpuperf.baselines import json_files
from pytest_gpuperf.baselines.results import ResultsError
from pytest_gpuperf.baselines.schema import BaselineError, Baselines
from pytest_gpuperf.baselines.storage import make_storage
from pytest_gpuperf.features import list_shown
from pytest_gpuperf.features.page.content import Content
from pytest_gpuperf.features.page.history import History, read_history
from pytest_gpuperf.features.page.run import Run
from pytest_gpuperf.report.results_file import Results, ResultsFile, load
from pytest_gpuperf.report.shown import Shown
from pytest_gpuperf.traces.profile import Profile


class PageFile:
    """``--report``: writes the page of the run that ends."""

    def __init__(self, path: Path, results: ResultsFile, baselines: Path) -> None:
        """Nothing is written yet.

        Args:
            path: the page.
            results: gathers what the page shows.
            baselines: folder of the run's baselines.
        """
        self._path = path
        self._results = results
        self._baselines = baselines
        self._line = ""

    def pytest_gpuperf_end(self) -> bool:
        """Write the page, also of a run that was interrupted, and return whether it could be written."""
        try:
            write_page(self._path, [("this run", self._results.gather()[0])], self._baselines)
        except json_files.BaselineWriteError as error:
            self._line = f"page not written to {str(error.path)!r}: {error.why}: name another file with --report"
            return False
        self._line = f"page written to {self._path}"
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print where the page is."""
        if self._line:
            terminalreporter.write_line(f"gpuperf: {self._line}")


def write_page(path: Path, runs: Sequence[tuple[str, Results]], baselines: Path) -> None:
    """Write the page of these runs.

    Args:
        path: the page; its folder is made if it is missing.
        runs: the results, each with a name.
        baselines: folder of the baselines, whose launches and history the page shows; it need not exist.

    Raises:
        BaselineError: the page cannot be written.
    """
    from pytest_gpuperf.features.page.html import (
        render_html,  # its template engine takes 30 ms, which other runs need not wait for
    )

    shown = sorted((Run(name, results) for name, results in runs), key=lambda run: run.at, reverse=True)
    stored: dict[str, Baselines] = {}
    histories: dict[str, History] = {}
    storage = make_storage(baselines)
    for key in {run.key for run in shown}:
        try:
            found = storage.load(key)
        except BaselineError:
            continue  # a page is worth more without its baselines than none; whoever judges by them refuses them
        if found is not None:
            stored[key] = found
            histories[key] = read_history(Path(storage.where(key)), key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise json_files.BaselineWriteError(path, error) from error
    json_files.replace(path, render_html(Content(shown, stored, histories)))


def page_of_files(path: Path, files: Sequence[Path], baselines: Path) -> list[str]:
    """Write the page of results files, and return what to say about it.

    Args:
        path: the page.
        files: results of ``--gpuperf-json``; of one hardware or of several.
        baselines: as for ``write_page``.

    Raises:
        ResultsError: a file is none of results.
        BaselineError: the page cannot be written.
    """
    names = _name_files(files)
    if len(set(files)) < len(files):
        twice = next(file for file in files if files.count(file) > 1)
        raise ResultsError(twice, "it is given twice", "name each file once")
    kinds = list_shown()
    if all(kind.name != "profiles" for kind in kinds):  # of a run that had the feature that makes them
        kinds.append(Shown("profiles", Profile, lambda _: []))
    write_page(path, [(name, load(file, kinds)) for name, file in zip(names, files, strict=True)], baselines)
    return [f"page of {len(files)} run{'s' if len(files) > 1 else ''} written to {path}"]


def _name_files(files: Sequence[Path]) -> list[str]:
    """The files' names, with as many of their folders as tell them apart."""
    depth = 1
    while depth < 20 and len({file.parts[-depth:] for file in files}) < len(files):
        depth += 1
    return ["/".join(file.parts[-depth:]).removesuffix(".json") for file in files]
