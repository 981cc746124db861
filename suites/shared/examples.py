"""How many examples each variant of a drawn test has: suites/conftest.py deals them out, suites/table.py counts."""

from __future__ import annotations

import pytest

DEALT = pytest.StashKey[int]()
"""Of an item that hypothesis draws for; it has none of others."""
