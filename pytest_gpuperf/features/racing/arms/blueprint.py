"""What an arm takes over from the pytest run that races it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.options import Options

_NOT_TAKEN = ("file_or_dir", "plugins", "rootdir", "inifilename", "override_ini")
"""Options that an arm gets otherwise."""

NEUTRAL: Mapping[str, object] = {
    # An arm measures, and another process judges, records and writes.
    "gpuperf_update_baselines": None,
    "gpuperf_accept_regression": False,
    "gpuperf_resume": None,
    "gpuperf_launches": None,
    "gpuperf_reason": "",
    "gpuperf_json": None,
    "gpuperf_report": None,
    "gpuperf_profile": None,
    "gpuperf_baselines": None,
    "gpuperf_against_build": None,
    "gpuperf_race_budget": None,
    "gpuperf_explain": False,
    # It collects whole files, and launches what it is asked for.
    "keyword": "",
    "markexpr": "",
    "deselect": None,
    "ignore": None,
    "ignore_glob": None,
    "pyargs": False,
    "confcutdir": None,
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "stepwise": False,
    "stepwise_skip": False,
    "collectonly": False,
    "setuponly": False,
    "setupshow": False,
    "setupplan": False,
    "continue_on_collection_errors": True,
    "maxfail": 0,
    "benchmark_only": False,
    "benchmark_skip": False,
    # It is one process, that nobody sits in front of.
    "numprocesses": None,
    "dist": "no",
    "distload": False,
    "tx": [],
    "px": [],
    "looponfail": False,
    "usepdb": False,
    "trace": False,
    "capture": "fd",
    "verbose": 0,
    # It writes no report, and no file where the run writes one.
    "basetemp": None,
    "cacheclear": False,
    "cacheshow": None,
    "xmlpath": None,
    "report_log": None,
    "htmlpath": None,
    "json_report": False,
    "log_file": os.devnull,
    "pastebin": None,
    "debug": None,
    "cov_source": [],
    "cov_report": {},
    "cov_fail_under": None,
    "benchmark_autosave": False,
    "benchmark_save": None,
    "benchmark_compare": None,
    "benchmark_histogram": None,
    # Old code may have names that the present settings do not know.
    "strict": None,
    "strict_config": False,
    "strict_markers": False,
}
"""What an option is in an arm, whatever it is in the run."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The run that both arms repeat, each with its own code."""

    rootdir: Path
    inipath: Path | None
    directory: Path
    """The folder in which pytest was invoked."""
    directory_on_path: bool
    """Whether modules are found there, as with ``python -m pytest``."""
    options: Mapping[str, Any]
    """Values of ``config.option`` by name."""
    plugins: tuple[str, ...]
    """Arguments of ``-p``."""
    ini: tuple[str, ...]
    """Arguments of ``-o``."""
    hash_seed: str = ""
    """The value of PYTHONHASHSEED; empty: each process draws its own."""

    @classmethod
    def of(cls, config: pytest.Config, options: Options) -> Blueprint:
        """The blueprint of a run, whose configuration has been read."""
        directory = config.invocation_params.dir
        given = {name: value for name, value in vars(config.option).items() if name not in _NOT_TAKEN}
        neutral = {name: value for name, value in NEUTRAL.items() if name in given}
        # All wait for the same leases, wherever the checkout lies.
        ini = (f"gpuperf_leases={options.leases}", f"gpuperf_lease_timeout={options.lease_timeout!r}")
        return cls(
            rootdir=config.rootpath,
            inipath=config.inipath,
            directory=directory,
            directory_on_path="" in sys.path or str(directory) in sys.path,
            options={name: value for name, value in {**given, **neutral}.items() if _is_plain(value)},
            plugins=tuple(config.getoption("plugins", ())),
            ini=(*(config.getoption("override_ini", None) or ()), *ini),
            hash_seed=options.hash_seed,
        )


def _is_plain(value: object) -> bool:
    # As for xdist's workers: classes of the present code must not be loaded with the old one.
    if isinstance(value, (list, tuple, set)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, (*value, *value.values())))
    return value is None or type(value) in (bool, int, float, str, bytes) or isinstance(value, Path)
