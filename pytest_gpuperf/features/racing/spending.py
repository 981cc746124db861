"""How long later launches take, and what the user allows them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from pytest_gpuperf.features.racing.arms.arm import Arm, Measured
from pytest_gpuperf.features.racing.suspects import Held
from pytest_gpuperf.repository import CannotRace

# Seconds that a launch may take beyond _SLOWER times what the first launch of its tests took. More than a run's usual
# timeout, so that a test that hangs is ended by that, and the others of its launch go on.
PATIENCE = 180.0
_LEAST = 5.0  # seconds that a launch gets when the budget has almost run out
_SLOWER = 5.0


class NoTimeLeft(CannotRace):
    """A launch was ended since the user allowed it no more time."""


class Spending:
    """Makes later launches, and counts their seconds."""

    def __init__(self, budget: float | None) -> None:
        """Nothing is spent.

        Args:
            budget: seconds for all later launches of the run; None for no limit.
        """
        self._budget = budget
        self._spent = 0.0
        self._seconds: dict[tuple[str, ...], float] = {}
        """How long the last launch of these tests took."""

    def launch(self, arm: Arm, tests: Sequence[str], limit: float) -> Mapping[str, Measured]:
        """Have an arm launch tests.

        Args:
            arm: that launches.
            tests: node ids.
            limit: seconds that the launch may take, if the budget allows them.

        Raises:
            NoTimeLeft: the budget ended it.
            CannotRace: the arm cannot.
        """
        start = time.monotonic()
        left = limit if self._budget is None else max(_LEAST, self._budget - self._spent)
        try:
            launched = arm.launch(tests, min(limit, left))
        except CannotRace as error:
            if left < limit and time.monotonic() - start >= left:
                raise NoTimeLeft(str(error)) from error
            raise
        finally:
            self._spent += time.monotonic() - start
        self._seconds[tuple(tests)] = arm.seconds
        return launched

    def predict(self, tests: Sequence[Held]) -> float:
        """Return the seconds of a launch of the tests: those of the last one of just these, or of their first one."""
        return self._seconds.get(tuple(list_ids(tests)), sum(test.seconds for test in tests))

    def affords(self, tests: Sequence[Held], launches: int) -> bool:
        """Return whether the budget has room for so many launches of the tests."""
        return self._budget is None or self._spent + launches * self.predict(tests) <= self._budget


def compute_limit(tests: Sequence[Held]) -> float:
    """Return the seconds that a launch of the tests may take."""
    return PATIENCE + _SLOWER * sum(test.seconds for test in tests)


def list_ids(tests: Sequence[Held]) -> list[str]:
    """Return the node ids by which arms know the tests."""
    return [test.identity for test in tests]
