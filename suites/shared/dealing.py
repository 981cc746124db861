"""How many examples a drawn test has, and which tests begin early with ``--dist worksteal``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from typing import TypeVar

import pytest

DEALT = pytest.StashKey[int]()
"""The number of examples of an item that hypothesis draws for; other items have no such number."""


T = TypeVar("T")


def parts(count: int, workers: int) -> list[int]:
    """Where each worker's part of ``count`` tests begins, as xdist's WorkStealingScheduling deals them."""
    begins, begin = [], 0
    for worker in range(workers):
        begins.append(begin)
        begin += (count - begin) // (workers - worker)
    return begins


def early_first(
    tests: Sequence[T], workers: int, *, is_early: Callable[[T], bool], file_of: Callable[[T], Hashable]
) -> list[T]:
    """The tests in an order in which the early ones of each file begin a worker's part; all others keep their order.

    The files take turns: the first goes to the first worker. Those of one file stay together, as they share fixtures.
    """
    begins = parts(len(tests), workers)
    files: dict[Hashable, list[T]] = {}
    for test in filter(is_early, tests):
        files.setdefault(file_of(test), []).append(test)
    firsts: list[list[T]] = [[] for _ in begins]
    for number, of_file in enumerate(files.values()):
        firsts[number % workers].extend(of_file)
    rooms = [
        end - begin - len(first) for first, begin, end in zip(firsts, begins, [*begins[1:], len(tests)], strict=True)
    ]
    if min(rooms, default=0) < 0:  # so few tests that their order hardly matters
        return list(tests)
    others = iter([test for test in tests if not is_early(test)])
    ordered: list[T] = []
    for first, room in zip(firsts, rooms, strict=True):
        ordered += [*first, *islice(others, room)]
    return ordered
