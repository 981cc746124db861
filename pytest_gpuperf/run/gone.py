"""Entries of the baselines whose tests are no longer there, as far as this run has seen the files they were in."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import pytest

_REPETITION = "__pytest_repeat_step_number"  # of pytest-repeat: with --count, all tests have other names than without


class SeenTests:
    """Follows the collection: which files were collected whole, and which tests are in them."""

    def __init__(self, rootpath: Path, *, partly: bool) -> None:
        """Nothing is collected yet.

        Args:
            rootpath: What node ids are relative to.
            partly: Whether files may be collected in part, and not say so.
        """
        self._rootpath = rootpath
        self._partly = partly
        self._tests: set[str] = set()
        self._files: set[str] = set()
        self._incomplete: set[str] = set()

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Takes note of a test, before anything is deselected."""
        self._tests.add(item.nodeid)
        callspec = getattr(item, "callspec", None)
        if callspec is not None and _REPETITION in callspec.params:
            self._incomplete.add(item.nodeid.partition("::")[0])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Takes note of a file; there is no report of one of which tests were named on the command line."""
        file, of_a_class, _ = report.nodeid.partition("::")
        if not report.passed:
            self._incomplete.add(file)
        elif not of_a_class:
            self._files.add(file)

    def list_gone(self, stored: Collection[str]) -> list[str]:
        """Which of these tests are no longer there.

        A file that is not there tells only where others of the tests are: else these are another project's.
        """
        if self._partly:
            return []
        whole = self._files - self._incomplete
        ours = not self._tests.isdisjoint(stored)
        return [
            test
            for test in sorted(set(stored) - self._tests)
            if (file := test.partition("::")[0]) in whole or (ours and not os.path.exists(self._rootpath / file))
        ]
