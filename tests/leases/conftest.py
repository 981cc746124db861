"""A folder of leases, and processes that use it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_gpuperf.leases.leases import Leases
from tests.leases.owners import Owner


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "leases"


@pytest.fixture
def leases(folder: Path) -> Leases:
    return Leases(folder)


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Owner]]:
    """Starts processes that end with the test; those of one run share."""
    with ExitStack() as ending:

        def owner(run: str = "a run") -> Owner:
            started = Owner(folder, run)
            ending.callback(started.end)
            return started

        yield owner
