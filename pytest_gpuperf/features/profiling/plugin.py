"""``--profile``: the programs of each perf test are profiled once all its metrics have been measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.options import is_worker, runs_tests

if TYPE_CHECKING:
    from pytest_gpuperf.report.shown import Shown
    from pytest_gpuperf.run.session import Session

FOLDER = "gpuperf-profiles"
"""The folder of the traces, if the user names none."""
_DEST = "gpuperf_profile"


def pytest_gpuperf_options() -> Mapping[str, Mapping[str, Any]]:
    """Returns the option, whose short name pytest-profiling has, too."""
    return {
        "--profile": {
            "nargs": "?",
            "const": FOLDER,
            "metavar": "DIR",
            "help": "after each perf test has measured, profile a few steps of its programs on all ranks, and write "
            f"traces for Perfetto to DIR (default {FOLDER}); write it with =DIR",
        }
    }


def pytest_gpuperf_check_options(config: pytest.Config) -> None:
    """Refuses a folder that cannot be meant, and a recording."""
    find_folder(config)


def pytest_gpuperf_writes(config: pytest.Config) -> Sequence[Path]:
    """Returns the folder of the traces."""
    folder = find_folder(config)
    return [] if folder is None else [folder]


def pytest_gpuperf_shows() -> Sequence[Shown]:
    """Returns the profiles."""
    from pytest_gpuperf.features.profiling.lines import PROFILES

    return [PROFILES]


def pytest_gpuperf_begin(config: pytest.Config, run: Session) -> None:
    """Registers what profiles, if anything is to be, once the folder is known to take files."""
    folder = find_folder(config)
    if folder is None:
        return
    from pytest_gpuperf.features.profiling.profiler import Profiling, TestProfiler

    profiling = Profiling(folder, config.invocation_params.dir, run.ranks)
    if runs_tests(config):
        profiling.require()
    config.pluginmanager.register(TestProfiler(profiling), "gpuperf-profiler")


def find_folder(config: pytest.Config) -> Path | None:
    """Returns the folder of the traces; None if nothing is profiled.

    Raises:
        pytest.UsageError: the folder cannot be meant, or the run records.
    """
    given: str | None = config.getoption(_DEST)
    if given is None:
        return None
    if not is_worker(config) and given in config.invocation_params.args:
        # argparse takes the argument behind --profile for its value, be it a path of tests.
        raise pytest.UsageError(
            f"--profile took {given!r} for the folder of its traces: write --profile={FOLDER} {given}, or "
            f"--profile={given} if you mean the folder"
        )
    if not given:
        raise pytest.UsageError(f"--profile= names no folder: write --profile={FOLDER}, or --profile at the end")
    if config.getoption("gpuperf_update_baselines", None) is not None:
        raise pytest.UsageError(
            "--profile starts fresh ranks after each test, and --update-baselines records launches in which all tests "
            "share their ranks: drop one of them"
        )
    return config.invocation_params.dir / given
