"""What tests of the rule need that compare it with numbers found by hand."""

from typing import Any

import pytest

from pytest_gpuperf.verdicts.history import History


def scattered(
    launches: int, center: float, spread: float, *, between: float = 0.0, machines: int = 1, known: bool = True
) -> History:
    """A history with the degrees of freedom that the numbers by hand are for."""
    return History(launches, center, spread, 0.6 * (launches - 1), between, machines, known)


def close(number: float) -> Any:
    """Equal to this, as far as a table tells it."""
    return pytest.approx(number, rel=1e-5)
