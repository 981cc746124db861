"""One trace file for all ranks: a process for each rank, and arrows from rank to rank for each collective.

The format is Chrome's Trace Event Format, which Perfetto, chrome://tracing and TensorBoard open. Perfetto numbers
threads over all processes and arrows over the whole file, so both get numbers of their own here. It also drops slices
of one thread that overlap without one lying in the other, so such a slice gets a row of its own.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from pytest_gpuperf.traces.collectives import Collectives, Part
from pytest_gpuperf.traces.events import RankEvents, Slice, read
from pytest_gpuperf.traces.lanes import make_lanes, track_name
from pytest_gpuperf.traces.profile import Lane, RankTimes
from pytest_gpuperf.traces.rank_trace import RankTrace
from pytest_gpuperf.traces.times import compute_rank_times

_MARGIN = 1_000_000  # nanoseconds between the origin and the first rank's start
_THREADS = 10_000  # numbers of threads that a rank has for itself
_ARROWS = 2**40  # numbers of arrows that a rank has for itself; torch's have 32 bits
_LEVEL = 5  # of gzip: 9 takes four times as long, and saves 2 %
_ROUNDING = 1e-3  # microseconds by which neighbours may overlap, since times are rounded to nanoseconds

_Row = tuple[tuple[str, int], int]
"""A track, and which of its rows."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What was found while a file was written."""

    ranks: tuple[RankTimes, ...]
    lanes: tuple[Lane, ...]
    collectives: int
    """How many are tied across ranks."""


@dataclass(slots=True)
class _Places:
    """The place of the slices of one rank: process, thread and row."""

    process: int
    threads: dict[_Row, int] = field(default_factory=dict)
    starts: dict[tuple[tuple[str, int], float], int] = field(default_factory=dict)
    """Threads of slices, by track and start."""

    def thread(self, row: _Row) -> int:
        """Return the number of a row's thread in the file."""
        return self.threads.setdefault(row, self.process * _THREADS + len(self.threads))


def write(path: Path, traces: Sequence[RankTrace], about: Mapping[str, Any]) -> Merged:
    """Write one file for all ranks, in place of an earlier one.

    Args:
        path: ends in ``.json.gz``; its folder exists.
        traces: of the ranks, in rank order.
        about: what the file says of itself, under ``gpuperf``.

    Raises:
        OSError: the file cannot be written.
        ValueError: a trace is not what torch.profiler writes.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with gzip.open(unfinished, "wt", compresslevel=_LEVEL, encoding="utf-8") as file:
            merged = _write(file, traces, about)
        os.replace(unfinished, path)
    finally:
        with suppress(OSError):
            unfinished.unlink()
    return merged


def _write(file: TextIO, traces: Sequence[RankTrace], about: Mapping[str, Any]) -> Merged:
    origin = min(trace.started for trace in traces) - _MARGIN
    collectives, places = Collectives(), {}
    times: list[RankTimes] = []
    lanes: list[Lane] = []
    separator = ""
    file.write('{"traceEvents":[')
    for trace in traces:  # one after another: a rank's events can be hundreds of megabytes
        events = read(trace, origin)
        times.append(compute_rank_times(events))
        lanes += make_lanes(events)
        collectives.add(events, trace.issued)
        places[trace.rank] = _Places(trace.rank + 1)  # Perfetto takes process 0 for the kernel's idle one
        for event in _iterate_rank_events(events, places[trace.rank]):
            file.write(f"{separator}\n{json.dumps(event, separators=(',', ':'))}")
            separator = ","
    tied = collectives.tie()
    for event in _ties(tied, places):
        file.write(f"{separator}\n{json.dumps(event, separators=(',', ':'))}")
        separator = ","
    rest = {"displayTimeUnit": "ms", "baseTimeNanoseconds": origin, "gpuperf": about}
    file.write(f"\n],{json.dumps(rest)[1:]}")
    return Merged(tuple(times), tuple(lanes), len(tied))


def _iterate_rank_events(events: RankEvents, places: _Places) -> Iterator[dict[str, Any]]:
    process = places.process
    named = {"name": f"rank {events.rank} ({events.device})"}
    yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "ts": 0, "args": named}
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "ts": 0, "args": {"sort_index": process}}
    communicate: set[_Row] = set()
    for one, row in _iterate_rows(events.slices):
        thread = places.thread(row)
        places.starts[one.track, one.start] = thread
        if one.on_device and one.kind == "communication":
            communicate.add(row)
        yield {
            "ph": "X",
            "cat": one.category,
            "name": one.name,
            "pid": process,
            "tid": thread,
            "ts": round(one.start, 3),
            "dur": round(one.duration, 3),
            "args": one.args,
        }
    yield from _arrows(events, places)
    for row, thread in places.threads.items():
        track, number = row
        name = track_name(track, events) + (f", row {number + 1}" if number else "")
        if row in communicate:
            name += ", communication"
        order = thread + (_THREADS // 2 if track[0] == "stream" else 0)  # streams below the host's threads
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "ts": 0, "args": {"name": name}}
        sorting = {"sort_index": order}
        yield {"ph": "M", "name": "thread_sort_index", "pid": process, "tid": thread, "ts": 0, "args": sorting}


def _arrows(events: RankEvents, places: _Places) -> Iterator[dict[str, Any]]:
    """Yield the ends of the arrows from calls to kernels, of arrows that have both of them.

    torch also writes an end for each call that launches nothing, and a slice of the other end may be missing. Perfetto
    reports each single end as an error of the import.
    """
    whole: dict[int, set[str]] = {}
    found = []
    for arrow in events.arrows:
        tid = places.starts.get((arrow.track, arrow.at))
        if tid is not None:
            number = places.process * _ARROWS + int(arrow.event["id"])
            whole.setdefault(number, set()).add(str(arrow.event["ph"]))
            found.append({**arrow.event, "pid": places.process, "tid": tid, "ts": round(arrow.at, 3), "id": number})
    yield from (end for end in found if whole[end["id"]] >= {"s", "f"})


def _iterate_rows(slices: Sequence[Slice]) -> Iterator[tuple[Slice, _Row]]:
    """Yield each slice with a row of its track in which it lies whole within the slices that have not ended."""
    open_ends: dict[tuple[str, int], list[list[float]]] = {}
    for one in slices:
        rows = open_ends.setdefault(one.track, [])
        for number in itertools.count():
            if number == len(rows):
                rows.append([])
            ends = rows[number]
            while ends and ends[-1] <= one.start + _ROUNDING:
                ends.pop()
            if not ends or one.end <= ends[-1] + _ROUNDING:
                ends.append(one.end)
                yield one, (one.track, number)
                break


def _ties(tied: Sequence[Sequence[Part]], places: Mapping[int, _Places]) -> Iterator[dict[str, Any]]:
    for number, parts in enumerate(tied, 1):
        for index, part in enumerate(parts):
            one = part.slice
            phase = "s" if index == 0 else "f" if index == len(parts) - 1 else "t"
            yield {
                "ph": phase,
                "cat": "collective",
                "name": str(one.args.get("Collective name", one.name)),
                "id": number,
                "pid": places[part.rank].process,
                "tid": places[part.rank].starts[one.track, one.start],
                "ts": round(one.start + min(one.duration, 2 * _ROUNDING) / 2, 3),
                **({"bp": "e"} if phase == "f" else {}),
            }
