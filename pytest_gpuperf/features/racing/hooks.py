"""The hooks by which other features take part in the decision about metrics that moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpuperf.features.racing.suspects import Held


@pytest.hookspec
def pytest_gpuperf_holds_gains(config: pytest.Config) -> bool:
    """Returns whether the feature wants metrics that gained in ``pytest_gpuperf_moved``, too."""
    raise NotImplementedError


@pytest.hookspec
def pytest_gpuperf_moved(config: pytest.Config, tests: Sequence[Held]) -> None:
    """Metrics that had moved are decided, and nothing is reported yet of their tests.

    With ``--against`` these are all tests of the run. With pytest-xdist each worker calls it for its own.

    Args:
        config: pytest's.
        tests: these tests; each takes other verdicts by ``decide``.
    """
