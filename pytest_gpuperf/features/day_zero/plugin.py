"""A metric without a record is held against what references or a model of the hardware expect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpuperf.hardware.machine import Machine
    from pytest_gpuperf.verdicts.expectations import Expects
    from pytest_gpuperf.verdicts.rule import Policy


@pytest.hookimpl(trylast=True)  # another plugin may know more
def pytest_gpuperf_expects(machine: Machine, policy: Policy) -> Expects:
    """Returns the opinion of both; files are read only if a metric has no record."""
    from pytest_gpuperf.features.day_zero.opinions import Opinions

    return Opinions(machine, policy)
