"""The hash of a perf test's body: metrics of a body with another one are not comparable.

It covers the source of the test function, and the constants of its module that the function uses.
"""

from __future__ import annotations

import dataclasses
import dis
import enum
import hashlib
import inspect
import io
import os
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import CodeType
from typing import Any

import pytest

_BODY = pytest.StashKey[str]()
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_NO_PART = "@pytest.mark.depends("  # says what metrics depend on, and changes none of them
_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}  # the last two are a class's, in a body


def hash_body(item: pytest.Function) -> str:
    """Names the test function's source, without blank and comment lines, and the plain constants that it loads.

    Functions, classes and modules that it loads are not part of it: regressions are made in those. A constant counts as
    it was when this was first asked of the item, since a test may change what it has loaded.

    Raises:
        OSError: the source is not to be found.
        TypeError: the test is no function with a source.
    """
    if _BODY not in item.stash:
        item.stash[_BODY] = _hash(inspect.unwrap(item.function))
    return item.stash[_BODY]


def keep_body(clone: pytest.Item, *, of: pytest.Item) -> None:
    """Gives a copy of an item the hash that the item has, if it has one."""
    if _BODY in of.stash:
        clone.stash[_BODY] = of.stash[_BODY]


def _hash(function: Any) -> str:
    lines = list(_iterate_code(inspect.getsource(function)))
    lines += [f"{name} = {text}" for name, text in _iterate_constants(function)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _iterate_constants(function: Any) -> Iterator[tuple[str, str]]:
    """The plain values among the globals that the function loads by name, as text, in the order of their names."""
    known: Mapping[str, object] = function.__globals__
    for name in sorted(set(_list_loaded(function.__code__)) & known.keys()):
        with suppress(_NotPlain):
            yield name, _format_plain(known[name], ())


def _list_loaded(code: CodeType) -> Iterator[str]:
    yield from (str(step.argval) for step in dis.get_instructions(code) if step.opname in _LOADS)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _list_loaded(constant)


class _NotPlain(Exception):
    """A value is no plain one, or holds one that is none."""


def _format_plain(value: object, within: tuple[int, ...]) -> str:
    """A plain value as text, the same in every process.

    Args:
        value: the value.
        within: ids of the values that hold it.

    Raises:
        _NotPlain: it is none.
    """
    if isinstance(value, str) and os.path.isabs(value):
        raise _NotPlain  # another one in every checkout
    if type(value) in _PLAIN:
        return repr(value)
    if id(value) in within:
        raise _NotPlain  # it holds itself
    kind, inside = type(value), (*within, id(value))
    if isinstance(value, enum.Enum):
        return f"{kind.__qualname__}.{value.name}({_format_plain(value.value, inside)})"
    if isinstance(value, dict):
        pairs = sorted(f"{_format_plain(key, inside)}: {_format_plain(item, inside)}" for key, item in value.items())
        return f"{kind.__qualname__}({', '.join(pairs)})"
    if isinstance(value, (tuple, list, set, frozenset)):
        items = [_format_plain(item, inside) for item in value]
        ordered = sorted(items) if isinstance(value, (set, frozenset)) else items  # a set's order differs by process
        return f"{kind.__qualname__}({', '.join(ordered)})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and _is_frozen(kind):
        members = [
            f"{field.name}={_format_plain(getattr(value, field.name), inside)}" for field in dataclasses.fields(value)
        ]
        return f"{kind.__qualname__}({', '.join(members)})"
    raise _NotPlain


def _is_frozen(kind: type[Any]) -> bool:
    return bool(kind.__dataclass_params__.frozen)


def _iterate_code(source: str) -> Iterator[str]:
    """The lines that count. Files hold hashes of them: another choice would make entries stale whose tests are not."""
    open_ = {number for first, last in _iterate_strings(source) for number in range(first, last)}
    depth = 0  # of the brackets of a decorator that is no part
    for number, line in enumerate(source.split("\n"), start=1):
        if depth or line.strip().startswith(_NO_PART):
            depth += line.count("(") - line.count(")")
            continue
        if number - 1 in open_ or (line.strip() and not line.strip().startswith("#")):
            yield line if number in open_ else line.rstrip()


def _iterate_strings(source: str) -> Iterator[tuple[int, int]]:
    """First and last line of each string; not of those that are statements, as docstrings, which change no metric."""
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
