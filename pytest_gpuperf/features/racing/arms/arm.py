"""What an arm is to those who race it: it launches tests, and returns their metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pytest_gpuperf.figures.metric import Metric


@dataclass(frozen=True, slots=True)
class Measured:
    """What one test came to in one launch of an arm."""

    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """The metrics by name; empty if there is a problem."""
    body_hash: str = ""
    """Hash of the test function's source; empty if the source cannot be read."""
    software: Mapping[str, str] = field(default_factory=dict)
    """Versions and settings of the launch, by name."""
    problem: str = ""
    """Why the test has no metrics; empty if it has them."""


class Arm(Protocol):
    """One of the codes that are raced."""

    @property
    def name(self) -> str:
        """What messages call it, for example ``the present code``."""
        ...

    @property
    def seconds(self) -> float:
        """How long the last launch took; 0 before the first one."""
        ...

    def start(self) -> None:
        """Has its process begin to collect the tests; waits for nothing.

        Raises:
            CannotRace: the process cannot be started.
        """
        ...

    def launch(self, tests: Sequence[str], limit: float) -> Mapping[str, Measured]:
        """Runs each test once, all of them in one set of fresh processes and communicators.

        Args:
            tests: node ids.
            limit: seconds that the whole launch may take.

        Raises:
            CannotRace: the arm ended, took too long, or is not the code that it should be.
        """
        ...

    def close(self) -> None:
        """Ends the arm's processes and removes its checkout."""
        ...
