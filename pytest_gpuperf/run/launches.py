"""Launches of perf tests: the same test again in fresh processes, and what stays the same about it.

A recording runs every perf test once per launch. All perf tests of a launch share its processes and
communicators, so the launches follow one another and do not interleave.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import tokenize
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_gpuperf.run.pytest_internals import copied


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


def launch_of(item: pytest.Item) -> LaunchOf:
    """The item's launch; the first of itself where nothing else is said."""
    return item.stash.get(LAUNCH, LaunchOf(item.nodeid, 1))


def repeated(items: Sequence[pytest.Function], launches: int) -> list[pytest.Function]:
    """The items once for each launch, launch after launch."""
    rounds = list(items)
    for number in range(2, launches + 1):
        rounds += [again(item, number) for item in items]
    return rounds


def again(item: pytest.Function, number: int) -> pytest.Function:
    """The item once more, as launch ``number`` of its test."""
    clone = copied(item, f"#{number}", _fresh(item))
    # Also those that it was given when it was collected: by fixture, a perf test is one without a marker in its source.
    clone.own_markers[:] = item.own_markers
    clone.stash[LAUNCH] = LaunchOf(launch_of(item).identity, number)
    return clone


def _fresh(item: pytest.Function) -> Any:
    # pytest gives each test of a class an instance of its own.
    if not isinstance(item.parent, pytest.Class):
        return item.obj
    return getattr(item.parent.newinstance(), item.originalname)  # type: ignore[no-untyped-call]


def body_hash(item: pytest.Function) -> str:
    """Names the test function's source, without blank and comment lines: figures of another body are stale."""
    source = inspect.getsource(inspect.unwrap(item.function))
    return hashlib.sha256("\n".join(_code(source)).encode()).hexdigest()[:16]


def _code(source: str) -> Iterator[str]:
    """The lines that count. Files hold hashes of them: another choice would make entries stale whose tests are not."""
    open_ = {number for first, last in _strings(source) for number in range(first, last)}
    for number, line in enumerate(source.split("\n"), start=1):
        if number - 1 in open_ or (line.strip() and not line.strip().startswith("#")):
            yield line if number in open_ else line.rstrip()


def _strings(source: str) -> Iterator[tuple[int, int]]:
    """First and last line of each string; not of those that are statements, as docstrings, which change no figure."""
    tokens: list[tokenize.TokenInfo] = []
    with suppress(tokenize.TokenError, SyntaxError):  # of a lambda, what was cut from its statement
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type not in (tokenize.COMMENT, tokenize.NL):
                tokens.append(token)
    begun: list[int] = []
    for place, token in enumerate(tokens):
        name = tokenize.tok_name[token.type]
        if name.endswith("STRING_START"):  # from Python 3.12 on, an f-string is several tokens
            begun.append(token.start[0])
        elif name.endswith("STRING_END"):
            yield begun.pop(), token.end[0]
        elif token.type == tokenize.STRING and not _is_statement(tokens, place):
            yield token.start[0], token.end[0]


def _is_statement(tokens: Sequence[tokenize.TokenInfo], place: int) -> bool:
    begins = place == 0 or tokens[place - 1].type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    return begins and place + 1 < len(tokens) and tokens[place + 1].type == tokenize.NEWLINE
