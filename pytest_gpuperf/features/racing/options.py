"""The command line options of races, read once into a frozen value."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_gpuperf.option_names import GROUP

_RACE_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "--against",
        {
            "default": None,
            "metavar": "REF",
            "help": "race the selected perf tests against the code of this commit, launch by launch in turn; needs no "
            "baseline, and runs on CPUs too",
        },
    ),
    (
        "--against-python",
        {
            "default": None,
            "metavar": "PATH",
            "help": "run the other arm of the race with this interpreter, of another torch for example; alone, the "
            "code is the same in both arms",
        },
    ),
    (
        "--against-build",
        {
            "default": None,
            "metavar": "COMMAND",
            "help": "what builds the other arm's compiled extensions, in the folder of its checkout",
        },
    ),
    (
        "--bisect",
        {
            "default": None,
            "metavar": "GOOD",
            "help": "race against the commit GOOD, and find the commit after it that made each regressed test slower",
        },
    ),
    (
        "--race-budget",
        {
            "type": float,
            "default": None,
            "metavar": "SECONDS",
            "help": "how long fresh launches of a run may take; what is open then is undecided",
        },
    ),
)


def add_race_options(parser: pytest.Parser) -> None:
    """Registers the options."""
    for name, settings in _RACE_OPTIONS:
        parser.getgroup(GROUP).addoption(name, **settings, dest=_make_dest(name))


def is_race_option_given(config: pytest.Config) -> bool:
    """Whether the user gave one of them."""
    return any(config.getoption(_make_dest(name)) is not None for name, _ in _RACE_OPTIONS)


def _make_dest(name: str) -> str:
    return "gpuperf_" + name.removeprefix("--").replace("-", "_")


@dataclass(frozen=True, slots=True)
class RaceOptions:
    """What the user asked for of races."""

    against: str | None = None
    """What all selected tests race: a commit, or the checkout as it is, if empty; None if only suspects race."""
    python: str | None = None
    """The other arm's interpreter; None for this one."""
    build: str | None = None
    """What builds the other arm's extensions."""
    bisect: bool = False
    """Whether to find the commit that made a test slower."""
    budget: float | None = None
    """Seconds that fresh launches may take; None for no limit."""


def race_options(config: pytest.Config) -> RaceOptions:
    """Reads and checks the options of races.

    Raises:
        pytest.UsageError: a value that cannot be meant, or options that exclude one another.
    """
    against, good, python = (
        config.getoption(name) for name in ("gpuperf_against", "gpuperf_bisect", "gpuperf_against_python")
    )
    if against is not None and good is not None:
        raise pytest.UsageError("--bisect GOOD races against GOOD: drop --against")
    for option, ref in (("--against", against), ("--bisect", good)):
        if ref is not None and not ref.strip():
            raise pytest.UsageError(f"{option} takes a commit, a branch or a tag, got {ref!r}")
    budget = config.getoption("gpuperf_race_budget")
    if budget is not None and not 0 < budget < float("inf"):
        raise pytest.UsageError(f"--race-budget takes seconds above 0, got {budget:g}")
    if python is not None and shutil.which(python) is None:
        raise pytest.UsageError(f"--against-python takes an interpreter that can be run, got {python!r}")
    alone = "" if python is not None else None
    return RaceOptions(
        against=next((ref for ref in (against, good) if ref is not None), alone),
        python=python,
        build=config.getoption("gpuperf_against_build"),
        bisect=good is not None,
        budget=budget,
    )
