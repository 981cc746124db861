"""``--mutate``: tests on ranks that pass run again, each time with one fault in what their programs communicate."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.options import is_worker, runs_tests

if TYPE_CHECKING:
    from pytest_gpuperf.features.mutating.coverage import Coverage
    from pytest_gpuperf.run.session import Session

_DEST = "gpuperf_mutate"
_UNDER = "gpuperf_mutate_fail_under"
_ALL = "all"
"""The value of the option without one: no budget."""
_HTML = "gpuperf_mutate_html"


def pytest_gpuperf_options() -> Mapping[str, Mapping[str, Any]]:
    """Returns the options."""
    return {
        "--mutate": {
            "nargs": "?",
            "const": _ALL,
            "metavar": "SECONDS",
            "help": "run each test on ranks that passes again, each time with one fault in what it communicates, and "
            "list the faults that no test notices; stop after SECONDS (default: none); write it with =SECONDS",
        },
        "--mutate-html": {
            "metavar": "FILE",
            "help": "with --mutate: write a page of HTML to FILE: the source, its lines coloured by what tests notice",
        },
        "--mutate-fail-under": {
            "metavar": "PERCENT",
            "help": "with --mutate: fail the run if the tests notice less than PERCENT of the faults",
        },
    }


def pytest_gpuperf_check_options(config: pytest.Config) -> None:
    """Refuses values that cannot be meant."""
    _read_budget(config)
    under = _read_fail_under(config)
    if config.getoption(_DEST) is None:
        if under is not None:
            raise pytest.UsageError("--mutate-fail-under needs faults to judge by: add --mutate")
        if _read_page(config) is not None:
            raise pytest.UsageError("--mutate-html needs faults to show: add --mutate")
        return
    if config.getoption("usepdb", False):
        raise pytest.UsageError("--mutate makes tests fail on purpose, and --pdb would stop at each: drop one of them")


def pytest_gpuperf_writes(config: pytest.Config) -> Sequence[Path]:
    """Returns the page."""
    page = _read_page(config)
    return [] if page is None else [page]


def pytest_gpuperf_begin(config: pytest.Config, run: Session) -> None:
    """Registers what makes the faults, if any are to be made."""
    if config.getoption(_DEST) is None or not runs_tests(config):
        return
    from pytest_gpuperf.features.mutating.mutating import Mutating
    from pytest_gpuperf.features.mutating.reporting import Reporting, Wishes, hand_over

    take: Callable[[Coverage], None]
    if is_worker(config):
        take = functools.partial(hand_over, vars(config)["workeroutput"])
    else:
        reporting = Reporting(
            config.rootpath, Wishes(_read_budget(config), _read_fail_under(config), _read_page(config)), run.results
        )
        config.pluginmanager.register(reporting, "gpuperf-coverage")
        take = reporting.take
    mutating = Mutating(run.ranks, run.console.print_line, config.rootpath, _read_budget(config), take)
    config.pluginmanager.register(mutating, "gpuperf-faults")


def _read_budget(config: pytest.Config) -> float:
    given: str | None = config.getoption(_DEST)
    if given in (None, _ALL):
        return math.inf
    seconds = _parse_number(given)
    if seconds is None or not seconds > 0:
        # argparse takes the argument behind --mutate for its value, be it a path of tests.
        raise pytest.UsageError(
            f"--mutate took {given!r} for the seconds that faults may take, which must be a number above 0: write "
            "--mutate=60, or --mutate at the end of the line for no limit"
        )
    return seconds


def _read_page(config: pytest.Config) -> Path | None:
    given: str | None = config.getoption(_HTML)
    return None if given is None else config.invocation_params.dir / given


def _read_fail_under(config: pytest.Config) -> float | None:
    given: str | None = config.getoption(_UNDER)
    if given is None:
        return None
    share = _parse_number(given)
    if share is None or not 0 <= share <= 100:
        raise pytest.UsageError(f"--mutate-fail-under is a share in percent, 0 to 100, got {given!r}")
    return share


def _parse_number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
