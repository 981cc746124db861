"""What became of the faults, in the process that reports: on the terminal, in the results, as page and remarks."""

from __future__ import annotations

import math
import pickle
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.features.mutating.coverage import Coverage
from pytest_gpuperf.features.mutating.form import make_form
from pytest_gpuperf.features.mutating.lines import iterate_coverage_lines
from pytest_gpuperf.features.mutating.page import render_html
from pytest_gpuperf.features.mutating.remarks import iterate_remarks
from pytest_gpuperf.report.annotation import Annotation

if TYPE_CHECKING:
    from pytest_gpuperf.report.results_file import ResultsFile

_FROM_WORKER = "gpuperf_coverage"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user asked of the faults."""

    budget: float = math.inf
    """Seconds for all faults; each worker of xdist has as many."""
    fail_under: float | None = None
    """The least share of noticed faults, in percent; None for any."""
    page: Path | None = None
    """Where a page of HTML is written; None for none."""


class Reporting:
    """Reports communication coverage; a plugin of pytest."""

    def __init__(self, root: Path, wishes: Wishes, results: ResultsFile | None) -> None:
        """Has nothing to report.

        Args:
            root: to which files are relative.
            wishes: what the user asked for.
            results: of the run, which take the coverage too; None if nobody reads them.
        """
        self._root = root
        self._wishes = wishes
        self._results = results
        self._written = ""
        self._coverage: Coverage | None = None

    def take(self, coverage: Coverage) -> None:
        """Takes what became of the faults of a process."""
        if self._coverage is None:
            self._coverage = Coverage()
        self._coverage.add(coverage)
        if self._results is not None:
            self._results.add("mutating", make_form(self._coverage, self._root))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Takes what a worker of xdist found."""
        found = getattr(node, "workeroutput", {}).get(_FROM_WORKER)
        if found is not None:
            self.take(pickle.loads(found))

    def pytest_gpuperf_annotations(self) -> list[Annotation]:
        """The lines whose faults no test noticed."""
        return [] if self._coverage is None else list(iterate_remarks(self._coverage))

    def pytest_gpuperf_end(self) -> bool:
        """Writes the page, if one is wanted and faults were made; whether that worked."""
        page = self._wishes.page
        if page is None or self._coverage is None:
            return True
        try:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(render_html(self._coverage, self._root), "utf-8")
        except OSError as error:
            self._written = (
                f"--mutate-html: {str(page)!r} was not written: {error.strerror}; expected a file that can be "
                "written: name another one"
            )
            return False
        self._written = f"page written to {page}"
        return True

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fails a run whose tests notice too little."""
        under = self._wishes.fail_under
        if self._coverage is None or under is None or session.exitstatus != pytest.ExitCode.OK:
            return
        if self._coverage.describe_shortfall(under):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints what no test noticed, worst first."""
        if self._coverage is None:
            return
        terminalreporter.write_sep("=", "communication coverage")
        verbose = terminalreporter.config.get_verbosity() > 0
        for line in iterate_coverage_lines(self._coverage, self._root, self._wishes.fail_under, verbose=verbose):
            terminalreporter.write_line(line)
        if self._written:
            terminalreporter.write_line(self._written)


def hand_over(output: MutableMapping[str, Any], coverage: Coverage) -> None:
    """Puts what a worker of xdist found into what it returns."""
    output[_FROM_WORKER] = pickle.dumps(coverage)
