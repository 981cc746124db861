"""Where two nested values differ: lists, tuples, dictionaries and dataclasses are compared item by item."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

SHOWN = 120
"""Characters of a value, at most."""


class Difference(NamedTuple):
    """One item that differs."""

    path: tuple[Any, ...]
    """Indices, keys and names of fields on the way to it."""
    got: Any
    expected: Any


class Absent:
    """Stands for an item that one side does not have."""

    def __repr__(self) -> str:
        return "nothing"


ABSENT = Absent()


def differences(got: Any, expected: Any, path: tuple[Any, ...] = ()) -> Iterator[Difference]:
    """All items that differ, in order."""
    if type(got) is type(expected) and (pairs := _pairs(got, expected)) is not None:
        for key, (have, want) in pairs.items():
            yield from differences(have, want, (*path, key))
    elif not _same(got, expected):
        yield Difference(path, got, expected)


def _pairs(got: Any, expected: Any) -> Mapping[Any, tuple[Any, Any]] | None:
    """The items of two values of one type, side by side; None of a value that has none."""
    if isinstance(got, list | tuple):
        most = max(len(got), len(expected))
        sides = [[*side, *[ABSENT] * (most - len(side))] for side in (got, expected)]
        return dict(enumerate(zip(*sides, strict=True)))
    if isinstance(got, dict):
        keys = [*expected, *(key for key in got if key not in expected)]
        return {key: (got.get(key, ABSENT), expected.get(key, ABSENT)) for key in keys}
    if dataclasses.is_dataclass(got):
        return {f.name: (getattr(got, f.name), getattr(expected, f.name)) for f in dataclasses.fields(got) if f.compare}
    return None


def _same(got: Any, expected: Any) -> bool:
    try:
        return bool(got == expected)
    except (RuntimeError, ValueError):  # of tensors and arrays, which say so element by element
        return got is expected


def in_words(found: Sequence[Difference], *, world_size: int | None = None) -> list[str]:
    """The first differences, in words; the outermost index is a rank's if there is one item for each rank."""
    first, others = found[0], len(found) - 1
    line = f"{_where(first.path, world_size)}: got {_short(first.got)}, expected {_short(first.expected)}"
    more = [f"{others} more differ, the next one is {_where(found[1].path, world_size)}"] if others else []
    return [line, *more]


def _where(path: tuple[Any, ...], world_size: int | None) -> str:
    if not path:
        return "the value"
    ranked = world_size is not None and isinstance(path[0], int)
    names = [f"rank {path[0]}" if ranked else f"item {path[0]!r}", *(f"item {key!r}" for key in path[1:])]
    return ", ".join(names)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
