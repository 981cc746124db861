"""Whether a rank may say that its run met no other, on either backend."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_gpuperf.ranks.messages import Start
from pytest_gpuperf.ranks.rank import _Rank

WORLD, MESH = "the default group", "a group of the program's own"


@pytest.mark.parametrize(
    ("backend", "before", "after", "recorded", "gathering", "groups"),
    [
        ("gloo", {WORLD: 3}, {WORLD: 3}, False, False, (1, 1)),
        ("gloo", {WORLD: 3}, {WORLD: 3}, True, False, (1, 1)),  # its recorder lacks sends, its numbers have them
        ("gloo", {WORLD: 3}, {WORLD: 4}, False, False, None),
        ("gloo", {WORLD: 3}, {WORLD: 3, MESH: 0}, False, False, (2, 2)),
        ("gloo", {WORLD: 3}, {WORLD: 3, MESH: 1}, False, False, None),
        ("gloo", {WORLD: 3}, {}, False, False, None),
        ("gloo", None, {WORLD: 3}, False, False, None),
        ("gloo", {WORLD: 3}, None, False, False, None),
        ("gloo", {WORLD: 3}, {WORLD: 3}, False, True, None),
        ("nccl", {WORLD: 3}, {WORLD: 3}, False, False, (1, 1)),
        ("nccl", {WORLD: 3}, {WORLD: 3}, True, False, None),  # a send, say
        ("nccl", {WORLD: 3}, {WORLD: 4}, False, False, None),
    ],
)
def test_a_rank_is_silent_if_neither_numbers_nor_recorder_tell_of_anything(
    backend: str,
    before: dict[str, int] | None,
    after: dict[str, int] | None,
    recorded: bool,
    gathering: bool,
    groups: tuple[int, int] | None,
) -> None:
    rank = object.__new__(_Rank)  # without a store, a device or a group
    rank._start = Start(0, 2, backend, 1)
    rank._before = before
    rank._informant = SimpleNamespace(is_silent=lambda: not recorded)  # type: ignore[assignment]
    count = len(after or {})
    rank._groups = SimpleNamespace(  # type: ignore[assignment]
        read_sequence_numbers=lambda: after, count=lambda: (count, count), coalesce=gathering
    )
    assert rank._count_if_silent() == groups
