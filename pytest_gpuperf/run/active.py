"""The run that a pytest process has once something has asked for the plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpuperf.run.session import Session

SESSION: pytest.StashKey[Session] = pytest.StashKey()
"""On pytest's configuration; absent until something asks for the plugin."""
