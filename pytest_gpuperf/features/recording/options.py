"""The command line options of recordings, read once into a frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_gpuperf.baselines.mode import LEAST_LAUNCHES, Mode
from pytest_gpuperf.option_names import GROUP, ModeAction
from pytest_gpuperf.options import is_distributed, parse_gpus

DEFAULT_LAUNCHES = LEAST_LAUNCHES
_UPDATE, _ACCEPT, _RESUME = "gpuperf_update_baselines", "gpuperf_accept_regression", "gpuperf_resume"
_LAUNCHES, _REASON = "gpuperf_launches", "gpuperf_reason"

RESUME: Mapping[str, Mapping[str, Any]] = {
    "--resume": {
        "action": "store_true",
        "default": None,
        "help": "with --update-baselines: go on with a recording that was interrupted",
    }
}
"""The option that has another name, as others use this one."""


@dataclass(frozen=True, slots=True)
class RecordingOptions:
    """What the user asked for of a recording."""

    mode: Mode = Mode.MOVED
    """Which entries it replaces."""
    launches: int = DEFAULT_LAUNCHES
    reason: str = ""
    accept_regression: bool = False
    resume: bool | None = None
    """Whether to go on with one that was interrupted; None if the user did not say."""


def add_recording_options(parser: pytest.Parser) -> None:
    """Registers the options, but for ``RESUME``."""
    group = parser.getgroup(GROUP)
    group.addoption(
        "--update-baselines",
        *(f"--update-baselines={mode.value}" for mode in Mode),
        action=ModeAction,
        const=Mode.MOVED.value,
        dest=_UPDATE,
        default=None,
        help="record what the perf tests measure as this hardware's baselines: where entries are missing, stale or "
        "their centres moved (moved, the default), where they are missing (new), everywhere (all), or as more launches "
        "of them (append)",
    )
    group.addoption(
        "--accept-regression",
        dest=_ACCEPT,
        action="store_true",
        help="with --update-baselines: write centres that are worse, too",
    )
    group.addoption(
        "--no-resume",
        dest=_RESUME,
        action="store_false",
        default=None,
        help="with --update-baselines: drop what an interrupted recording has measured, and begin again",
    )
    group.addoption(
        "--launches",
        dest=_LAUNCHES,
        type=int,
        metavar="N",
        help="with --update-baselines: launches (fresh processes and communicators) to record "
        f"(default {DEFAULT_LAUNCHES})",
    )
    group.addoption(
        "--reason",
        dest=_REASON,
        default="",
        metavar="TEXT",
        help="with --update-baselines: why, kept in the file",
    )


def is_recording_option_given(config: pytest.Config) -> bool:
    """Whether the user gave one of them."""
    given = any(config.getoption(name) is not None for name in (_UPDATE, _RESUME, _LAUNCHES))
    return given or bool(config.getoption(_ACCEPT)) or config.getoption(_REASON) != ""


def read_recording_options(config: pytest.Config) -> RecordingOptions | None:
    """Reads the options; None if nothing is to be recorded."""
    mode = config.getoption(_UPDATE)
    if mode is None:
        return None
    return RecordingOptions(
        Mode(mode),
        config.getoption(_LAUNCHES) or DEFAULT_LAUNCHES,
        config.getoption(_REASON),
        bool(config.getoption(_ACCEPT)),
        config.getoption(_RESUME),
    )


def check_recording_options(config: pytest.Config) -> None:
    """Refuses values that cannot be meant, and options that exclude one another.

    Raises:
        pytest.UsageError: such an option was given.
    """
    mode, launches, resume = (config.getoption(name) for name in (_UPDATE, _LAUNCHES, _RESUME))
    update = mode is not None
    if launches is not None and not update:
        raise pytest.UsageError("--launches says how many launches to record: add --update-baselines")
    if launches is not None and launches < 1:
        raise pytest.UsageError(f"--launches must be 1 or more, got {launches}")
    if launches is not None and launches < LEAST_LAUNCHES and mode != Mode.APPEND.value:
        raise pytest.UsageError(
            f"--launches must be {LEAST_LAUNCHES} or more for a baseline, got {launches}; fewer can be added to one "
            "with --update-baselines=append"
        )
    if update and config.getoption("gpuperf_smoke"):
        raise pytest.UsageError("--smoke measures nothing that --update-baselines could record: drop one of them")
    if update and parse_gpus(config.getoption("gpuperf_gpus")) == 0:
        raise pytest.UsageError("baselines are recorded on GPUs only: add --gpus N")
    if config.getoption(_REASON) and not update:
        raise pytest.UsageError("--reason is stored with recorded baselines: add --update-baselines")
    for option, given in (
        ("--accept-regression", config.getoption(_ACCEPT)),
        ("--resume", resume),
        ("--no-resume", resume is False),
    ):
        if given and not update:
            raise pytest.UsageError(f"{option} is for a run that records baselines: add --update-baselines")
    if update and is_distributed(config):
        raise pytest.UsageError(
            "--update-baselines records launches one after another, and xdist's workers would each record some: drop -n"
        )
    if update and config.getoption("lf", False):
        raise pytest.UsageError(
            "--update-baselines runs every test once in each launch, and --lf picks single launches: drop --lf"
        )
    if update and not config.getoption(_REASON).strip():
        raise pytest.UsageError("--update-baselines keeps beside the metrics why they changed: add --reason TEXT")
