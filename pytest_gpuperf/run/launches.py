"""Launches of perf tests: the same test again in fresh processes, and what stays the same about it.

A recording runs every perf test once per launch. All perf tests of a launch share its processes and
communicators, so the launches follow one another and do not interleave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_gpuperf.run.body_hash import keep_body
from pytest_gpuperf.run.pytest_internals import copy_item, is_of_unittest


@dataclass(frozen=True, slots=True)
class LaunchOf:
    """Which launch of which test an item is."""

    identity: str
    """Node id of the test itself; names it in the baselines."""
    number: int
    """1 and up."""


LAUNCH = pytest.StashKey[LaunchOf]()


def identify(item: pytest.Item) -> None:
    """Keeps the node id that the item was collected with: xdist adds the group to it under ``--dist=loadgroup``."""
    item.stash.setdefault(LAUNCH, LaunchOf(item.nodeid, 1))


def find_launch(item: pytest.Item) -> LaunchOf:
    """The item's launch; the first of itself where nothing else is said."""
    return item.stash.get(LAUNCH, LaunchOf(item.nodeid, 1))


def repeat(items: Sequence[pytest.Function], launches: int) -> list[pytest.Function]:
    """The items once for each launch, launch after launch."""
    rounds = list(items)
    for number in range(2, launches + 1):
        rounds += [copy_for_launch(item, number) for item in items]
    return rounds


def copy_for_launch(item: pytest.Function, number: int) -> pytest.Function:
    """The item once more, as launch ``number`` of its test."""
    clone = copy_item(item, f"#{number}", _make_fresh_body(item))
    # Also those that it was given when it was collected: by fixture, a perf test is one without a marker in its source.
    clone.own_markers[:] = item.own_markers
    keep_body(clone, of=item)
    clone.stash[LAUNCH] = LaunchOf(find_launch(item).identity, number)
    return clone


def _make_fresh_body(item: pytest.Function) -> Any:
    # pytest gives each test of a class an instance of its own.
    if not isinstance(item.parent, pytest.Class):
        return item.obj
    if is_of_unittest(item):
        return getattr(item.parent.obj(item.originalname), item.originalname)
    return getattr(item.parent.newinstance(), item.originalname)  # type: ignore[no-untyped-call]
