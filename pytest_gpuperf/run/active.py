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


def begin(config: pytest.Config) -> ModuleType:
    """Returns the hooks of the run, which begins with the first call."""
    from pytest_gpuperf.run import hooks

    if SESSION not in config.stash:
        hooks.begin(config)
    return hooks


def find_hooks(config: pytest.Config) -> ModuleType | None:
    """Returns the hooks of the run; None if nothing has asked for the plugin."""
    return begin(config) if SESSION in config.stash else None
