"""Reads what nccl-tests reports: its table, or the JSON file of ``-J``.

Written after src/util.cu of nccl-tests v2.19.6. A column is found by the name in the table's header, because
options and versions add columns.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NCCL = (re.compile(r"nccl-library=(\d+)"), re.compile(r"NCCL version (\d+\.\d+\.\d+)"))
_TESTS = re.compile(r"nccl-tests version (\S+)")
_OUT_OF_BOUNDS = re.compile(r"# Out of bounds values\s*:\s*(\d+)")
_UNCHECKED = "N/A"
_CURE = "run it by hand to see all of it, and use a release of nccl-tests from 2.17 on"


class OutputError(ValueError):
    """Something that nccl-tests does not write; names the place."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A size's figures, with or without a buffer of its own for the output."""

    seconds: float
    busbw: float
    """Bytes per second."""
    wrong: int | None
    """Elements with a wrong value; None where nccl-tests did not check."""


@dataclass(frozen=True, slots=True)
class Row:
    """One size."""

    nbytes: int
    dtype: str
    out_of_place: Timed | None
    in_place: Timed | None

    @property
    def wrong(self) -> int:
        """Elements with a wrong value, of both."""
        return sum(timed.wrong or 0 for timed in (self.out_of_place, self.in_place) if timed is not None)


@dataclass(frozen=True, slots=True)
class Versions:
    """What nccl-tests says of itself; None for what it does not say."""

    tests: str | None
    nccl: str | None
    """The version of the library that it loaded."""


@dataclass(frozen=True, slots=True)
class Output:
    """What one process of nccl-tests reported."""

    rows: tuple[Row, ...]
    out_of_bounds: int
    """In how many measurements a value was wrong."""

    @property
    def correct(self) -> bool:
        """Whether nothing was wrong that nccl-tests checked."""
        return not self.out_of_bounds and not any(row.wrong for row in self.rows)


def versions(text: str) -> Versions:
    """The versions in what nccl-tests printed."""
    tests, code, words = (pattern.search(text) for pattern in (_TESTS, *_NCCL))
    nccl = nccl_version(int(code[1])) if code else words[1] if words else None
    return Versions(tests[1] if tests else None, nccl)


def nccl_version(code: int) -> str:
    """NCCL's version as people write it, from its number: 22809 is 2.28.9 (NCCL_VERSION of nccl.h, from 2.9 on)."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


def parse_text(text: str) -> Output:
    """The table that nccl-tests prints.

    Raises:
        OutputError: There is no table, or a line of it cannot be read.
    """
    header: list[str] = []
    rows: list[Row] = []
    out_of_bounds = 0
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if words[:3] == ["#", "size", "count"]:
            header = words[1:]
        elif found := _OUT_OF_BOUNDS.match(line):
            out_of_bounds = int(found[1])
        elif words and words[0].isdecimal():
            rows.append(_row(header, words, f"line {number}, {line.strip()!r}"))
    if not rows:
        last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
        raise OutputError(f"nccl-tests printed no row of metrics; its last line is {last!r}: {_CURE}")
    return Output(tuple(rows), out_of_bounds)


def parse_json(text: str) -> Output:
    """The file that nccl-tests writes with ``-J``.

    Raises:
        OutputError: It is no JSON, or lacks a field.
    """
    try:
        report = json.loads(text)
    except json.JSONDecodeError as error:
        raise OutputError(f"nccl-tests' JSON ends or breaks at line {error.lineno}: {error.msg}: {_CURE}") from error
    results = _field(report, "results", "the file")
    if not isinstance(results, list) or not results:
        raise OutputError(f"nccl-tests' JSON has no row of metrics: got results {results!r}: {_CURE}")
    rows = []
    for number, row in enumerate(results):
        where = f"results[{number}]"
        nbytes, dtype = _field(row, "size", where), _field(row, "type", where)
        out_of_place, in_place = (_of_json(row.get(key), f"{where}.{key}") for key in ("out_of_place", "in_place"))
        rows.append(Row(int(_number(nbytes, f"{where}.size")), str(dtype), out_of_place, in_place))
    bounds = _field(_field(report, "out_of_bounds", "the file"), "count", "out_of_bounds")
    return Output(tuple(rows), int(bounds))


def _row(header: Sequence[str], words: Sequence[str], where: str) -> Row:
    starts = [column for column, name in enumerate(header) if name == "time"]
    if len(starts) != 2:
        raise OutputError(
            f"nccl-tests' output, {where}: expected a header above it with two columns 'time', got {list(header)}: "
            f"{_CURE}"
        )
    if len(words) != len(header):
        raise OutputError(
            f"nccl-tests' output, {where}: got {len(words)} columns, expected the header's {len(header)} "
            f"({' '.join(header)}): {_CURE}"
        )
    first, second = starts
    of_both = dict(zip(header[:first], words[:first], strict=True))
    out_of_place = dict(zip(header[first:second], words[first:second], strict=True))
    in_place = dict(zip(header[second:], words[second:], strict=True))
    nbytes = int(_number(of_both["size"], where))
    dtype = str(_field(of_both, "type", where))
    return Row(nbytes, dtype, _of_text(out_of_place, where), _of_text(in_place, where))


def _of_text(columns: Mapping[str, str], where: str) -> Timed:
    wrong = _field(columns, "#wrong", where)
    return _timed(
        columns["time"], _field(columns, "busbw", where), None if wrong == _UNCHECKED else _number(wrong, where), where
    )


def _of_json(fields: Any, where: str) -> Timed | None:
    if fields is None:
        return None
    wrong = _field(fields, "nwrong", where)
    time, busbw = _field(fields, "time", where), _field(fields, "bus_bw", where)
    return _timed(time, busbw, None if wrong is None else _number(wrong, where), where)


def _timed(microseconds: Any, gigabytes: Any, wrong: float | None, where: str) -> Timed:
    seconds, busbw = _number(microseconds, where) * 1e-6, _number(gigabytes, where) * 1e9
    if seconds <= 0:
        raise OutputError(
            f"nccl-tests' output, {where}: got a time of {microseconds} us, expected one above 0: {_CURE}"
        )
    return Timed(seconds, busbw, None if wrong is None else int(wrong))


def _field(fields: Any, name: str, where: str) -> Any:
    if not isinstance(fields, Mapping) or name not in fields:
        known = ", ".join(fields) if isinstance(fields, Mapping) else repr(fields)
        raise OutputError(f"nccl-tests' output, {where}: expected {name!r}, got {known}: {_CURE}")
    return fields[name]


def _number(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise OutputError(f"nccl-tests' output, {where}: got {value!r}, expected a number: {_CURE}")
    return number
