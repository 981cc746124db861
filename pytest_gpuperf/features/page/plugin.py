"""``--report``: a page of HTML with the figures, verdicts, charts and failures of the run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf.option_names import GROUP
from pytest_gpuperf.options import is_worker
from pytest_gpuperf.parser_internals import list_registered

if TYPE_CHECKING:
    from pytest_gpuperf.run.session import Session

_DEST = "gpuperf_report"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Registers the option."""
    short = () if "--report" in list_registered(parser) else ("--report",)  # pytest-reporter has one, too
    parser.getgroup(GROUP).addoption(
        *short,
        "--gpuperf-report",
        dest=_DEST,
        metavar="FILE",
        help="write a page of HTML with metrics, verdicts, charts and failures to FILE",
    )


def pytest_gpuperf_is_given(config: pytest.Config) -> bool:
    """Returns whether a page is written."""
    return config.getoption(_DEST) is not None


def pytest_gpuperf_check_options(config: pytest.Config) -> None:
    """Refuses a page that would replace the results, or the journal that they are recovered from."""
    results, page = config.getoption("gpuperf_json"), config.getoption(_DEST)
    if results is None or page is None:
        return
    folder = config.invocation_params.dir
    for what, path in (("results", results), ("journal of the results", f"{results}.journal")):
        if os.path.realpath(folder / path) == os.path.realpath(folder / page):
            raise pytest.UsageError(
                f"--report: got {page!r}, which is the {what} of --gpuperf-json, expected another file, as the page "
                "would replace it: give each a name of its own"
            )


def pytest_gpuperf_needs_results(config: pytest.Config) -> bool:
    """Returns whether a page is written of them."""
    return _read_page(config) is not None


def pytest_gpuperf_writes(config: pytest.Config) -> Sequence[Path]:
    """Returns the page."""
    page = _read_page(config)
    return [] if page is None else [page]


def pytest_gpuperf_begin(config: pytest.Config, run: Session) -> None:
    """Registers what writes the page, in the process that has all results."""
    page = _read_page(config)
    if page is None or run.results is None or is_worker(config):
        return
    from pytest_gpuperf.features.page.page_file import PageFile

    config.pluginmanager.register(PageFile(page, run.results, run.options.baselines), "gpuperf-page-file")


def _read_page(config: pytest.Config) -> Path | None:
    given = config.getoption(_DEST)
    return None if given is None else config.invocation_params.dir / given
