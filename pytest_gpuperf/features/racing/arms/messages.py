"""What an arm's process and its controller send each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_gpuperf.features.racing.arms.arm import Measured


@dataclass(frozen=True, slots=True)
class Start:
    """The pytest run that the arm is to be; the first message."""

    name: str
    """What messages call the arm."""
    options: Mapping[str, Any]
    """Values of ``config.option`` by name."""
    args: tuple[str, ...]
    """The command line beside the options: plugins, and the files to collect."""
    on_path: tuple[str, ...]
    """Folders that come first in ``sys.path``."""
    repository: str
    """Folder whose code the arm reports after each test; a real path."""


@dataclass(frozen=True, slots=True)
class Collected:
    """The arm has collected its tests."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Asks for one launch."""

    tests: tuple[str, ...]
    """Node ids."""


@dataclass(frozen=True, slots=True)
class Launched:
    """Answers ``Launch``."""

    results: Mapping[str, Measured]
    """One for each node id."""
    stray: str = ""
    """Which process loaded which file of another code, for example ``rank 0 loaded /x.py``; empty if none did."""
