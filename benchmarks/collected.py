"""The perf tests of the suites, as pytest collects them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


class _Collecting:
    """A plugin that keeps the tests by node id."""

    def __init__(self) -> None:
        self.items: dict[str, pytest.Function] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keep them."""
        self.items = {item.nodeid: item for item in session.items if isinstance(item, pytest.Function)}


def collected(root: Path) -> Mapping[str, pytest.Function]:
    """Return the perf tests of a checkout by node id.

    Args:
        root: of the checkout.
    """
    collecting = _Collecting()
    arguments = ["--collect-only", "-qqqq", "-m", "perf", "--no-summary", f"--rootdir={root}", "-p", "no:cacheprovider"]
    arguments += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    pytest.main([str(root / "suites"), *arguments], plugins=[collecting])
    sys.stdout.flush()
    return collecting.items
