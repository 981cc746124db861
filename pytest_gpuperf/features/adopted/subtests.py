"""Subtests on a rank: a failed one does not hide those after it, as long as all ranks failed it.

If some ranks passed, they are on their way to the next collective, and this rank must not go on without them.
"""

from __future__ import annotations

import contextlib
import traceback
import unittest
from collections.abc import Callable, Iterator
from typing import Any

PATIENCE = 1.0  # seconds that a rank waits for the others to fail the same subtest


class Subtests:
    """The subtests of one test on one rank.

    Args:
        all_failed: returns whether every rank failed the subtest of this number; it may wait for them.
    """

    def __init__(self, all_failed: Callable[[int], bool]) -> None:
        self._all_failed = all_failed
        self._count = 0
        self._failed: list[tuple[str, Exception]] = []

    @contextlib.contextmanager
    def subtest(self, msg: object = None, **params: Any) -> Iterator[None]:
        """Takes the place of ``unittest.TestCase.subTest``."""
        self._count += 1
        number, name = self._count, _name(msg, params)
        try:
            yield
        except unittest.SkipTest:
            raise
        except Exception as error:
            error.add_note(f"in subtest {name}")
            if not self._all_failed(number):
                raise
            self._failed.append((name, error))

    @contextlib.contextmanager
    def collect(self) -> Iterator[None]:
        """After the block, raises the first failure of a subtest, with the others as notes."""
        yield
        if not self._failed:
            return
        (_, first), *others = self._failed
        for name, error in others:
            text = "".join(traceback.format_exception(error)).rstrip()
            first.add_note(f"subtest {name} failed too:\n{text}")
        if others:
            first.add_note(f"{len(self._failed)} of {self._count} subtests failed")
        raise first


def _name(msg: object, params: dict[str, Any]) -> str:
    words = [f"[{msg}]"] if isinstance(msg, str) else []
    if params:
        words.append("(" + ", ".join(f"{name}={value!r}" for name, value in params.items()) + ")")
    return " ".join(words) or "(<subtest>)"
