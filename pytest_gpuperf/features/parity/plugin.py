"""The ``parity`` fixture, and ``--census``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf.option_names import GROUP

if TYPE_CHECKING:
    from pytest_gpuperf.api.ranks import Ranks
    from pytest_gpuperf.features.parity.fixture import Parity
    from pytest_gpuperf.run.session import Session

_DEST = "gpuperf_census"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Registers the option."""
    parser.getgroup(GROUP).addoption(
        "--census",
        dest=_DEST,
        action="store_true",
        help="report parameters and gradients of optimizers that are equal on some ranks at first, and differ later",
    )


def pytest_gpuperf_begin(config: pytest.Config, run: Session) -> None:
    """Registers what counts, if the user wants a census."""
    if config.getoption(_DEST):
        from pytest_gpuperf.features.parity.censused import CensusOfTests

        config.pluginmanager.register(CensusOfTests(), "gpuperf-census")


@pytest.fixture(scope="session")  # as ranks, so that hypothesis sees no function-scoped fixture
def parity(ranks: Ranks) -> Parity:
    """Compares a program on the test's ranks with a reference on one device: ``parity.check(reference, program)``."""
    from pytest_gpuperf.features.parity.fixture import Parity  # loads torch, which only tests that use it need

    return Parity(ranks)
