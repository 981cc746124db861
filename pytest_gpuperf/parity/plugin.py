"""The fixture of this room."""

from __future__ import annotations

import zlib

import pytest

from pytest_gpuperf.fixtures.ranks import Ranks


@pytest.fixture
def parity(request: pytest.FixtureRequest, ranks: Ranks) -> object:
    """Compares a program on the test's ranks with a reference on one device: ``parity.check(reference, program)``."""
    from pytest_gpuperf.parity.fixture import Parity  # loads torch, which only tests that use it need

    return Parity(ranks, seed=zlib.crc32(request.node.nodeid.encode()) % 10_000)
