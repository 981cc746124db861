"""The run that a pytest process has once something has asked for the plugin. Imports little, as ``plugin`` does."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpuperf.run.session import Session

SESSION: pytest.StashKey[Session] = pytest.StashKey()
"""On pytest's configuration; absent until something asks for the plugin."""
OTHERS = pytest.StashKey[list[str]]()
"""Short names of our options that another plugin has, or a ``conftest.py``."""

REPORTS = "gpuperf-reports"
"""Name of the plugin that begins the run of a process without tests, at the first report of a test on ranks."""


def begin(config: pytest.Config, *, collects: bool = True) -> ModuleType:
    """Returns the hooks of the run, which begins with the first call.

    Args:
        config: pytest's.
        collects: whether pytest collects, so that the error of the module that began it must say why it is refused.

    Raises:
        pytest.UsageError: the run is refused; a CollectError if pytest collects.
    """
    from pytest_gpuperf.run import hooks

    if SESSION not in config.stash:
        try:
            hooks.begin(config)
        except pytest.UsageError as error:
            if not collects:
                raise
            raise pytest.Collector.CollectError(str(error)) from error
    return hooks


def find_hooks(config: pytest.Config) -> ModuleType | None:
    """Returns the hooks of the run; None if nothing has asked for the plugin."""
    return begin(config) if SESSION in config.stash else None
