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
    """All metrics of a judged run are decided; nothing is reported yet of tests with metrics that had moved.

    Args:
        config: pytest's.
        tests: these tests; each takes other verdicts by ``decide``.
    """
