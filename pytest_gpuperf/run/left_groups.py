"""Process groups that a test opens in the pytest process and leaves there, where a later test would meet them."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Generator
from typing import Any

import pytest

from pytest_gpuperf.run.rank_supply import LeakWarning
from pytest_gpuperf.torch_internals import find_default_group


class LeftGroups:
    """Finds the default group that a test or its fixture left open, names the test, and destroys the group.

    A group stays as long as the fixture that opened it. One that a module or a hook has opened is no test's.
    """

    def __init__(self) -> None:
        self._seen: weakref.ref[Any] | None = None
        """The group that was open when a test or a fixture had begun last."""
        self._opener: pytest.FixtureDef[Any] | None = None
        """The fixture that opened it."""

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        """Notes a fixture that opens the group."""
        before = _find_default_group()
        try:
            return (yield)
        finally:
            group = _find_default_group()
            if group is not None and group is not before and not self._knows(group):
                self._seen, self._opener = weakref.ref(group), fixturedef

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self) -> None:
        """Notes a group that is there before the body, and that no fixture has opened: a hook of a conftest.py did."""
        group = _find_default_group()
        if group is not None and not self._knows(group):
            self._seen, self._opener = weakref.ref(group), None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Notes a group that is there before the test."""
        self.pytest_runtest_call()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        """Destroys what the test has left.

        Raises:
            LeakWarning: it left a group, and warnings are errors.
        """
        try:
            yield
        finally:
            group = _find_default_group()
            if group is not None and not self._stays(group):
                _destroy()
                item.warn(
                    LeakWarning(
                        f"{item.nodeid} left a process group open in the pytest process; it was destroyed, so that no "
                        "later test meets it: call torch.distributed.destroy_process_group() where the test or its "
                        "fixture ends"
                    )
                )

    def _knows(self, group: Any) -> bool:
        return self._seen is not None and self._seen() is group

    def _stays(self, group: Any) -> bool:
        if not self._knows(group):
            return False  # the test opened it
        return self._opener is None or self._opener.cached_result is not None


def _find_default_group() -> Any:
    return find_default_group() if "torch.distributed.distributed_c10d" in sys.modules else None  # else it loads torch


def _destroy() -> None:
    try:
        sys.modules["torch.distributed"].destroy_process_group()
    except Exception:  # whatever a group that a test has broken may raise: the warning is there in any case
        return
