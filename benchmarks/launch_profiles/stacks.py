"""What ranks were doing, by their stacks, and in which test."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

FOLDER = "GPUPERF_LAUNCH_PROFILE"
"""The variable that names the folder of the files; as in_ranks/sitecustomize.py has it."""
WINDOWS = "windows.jsonl"
EVERY = 0.01  # seconds between two samples of a rank
IDLE, OWN = "waiting for pytest", "programs that keep their own time"

DOINGS: Mapping[str, tuple[str, ...]] = {
    "process groups": ("ranks/groups.py:open",),
    "estimates": ("timing/measure.py:_plan",),
    "warm-up": ("timing/measure.py:warm_up",),
    "samples that count": ("timing/measure.py:sample_until_precise", "timing/interleaving.py:interleave"),
    "verification": (
        *("timing/measure.py:verify", "timing/verification.py:__call__"),
        *("timing/compare.py:_take_first_output", "timing/compare.py:_compare_outputs"),
    ),
    "counters": ("timing/metering.py:meter",),
    "preparation": ("timing/stepping.py:prepare",),
}
"""What a rank is doing if one of these functions is on its stack; the first one that fits."""


class Window(NamedTuple):
    """A phase of a test, in seconds since the epoch."""

    test: str
    phase: str
    """``setup``, ``call`` or ``teardown``."""
    began: float
    ended: float


class Sample(NamedTuple):
    """A rank's stack at a moment."""

    at: float
    stack: str
    """Functions as ``file:name``, the outermost first."""


def doing(stack: str) -> str:
    """What a rank with such a stack is doing, in words."""
    functions = stack.split(";")
    for words, markers in DOINGS.items():
        if any(marker in functions for marker in markers):
            return words
    return OWN if "ranks/rank.py:_run" in functions else IDLE


def windows(folder: Path) -> list[Window]:
    """The phases that the plugin has noted, in the order of their beginnings."""
    return sorted(
        (Window(*json.loads(line)) for line in (folder / WINDOWS).read_text().splitlines()), key=lambda one: one.began
    )


def samples(file: Path) -> Iterator[Sample]:
    """The samples of one rank. A last line that its end has cut off is left out."""
    stacks: dict[str, str] = {}
    for line in file.read_text().splitlines():
        first, _, rest = line.partition(" ")
        if first == "#":
            number, _, stack = rest.partition(" ")
            stacks[number] = stack
        elif rest in stacks:
            yield Sample(float(first), stacks[rest])


def by_test(found: Sequence[Window], ranks: Sequence[Sequence[Sample]]) -> dict[str, Counter[str]]:
    """Seconds of each test by what its ranks were doing, of the rank that ran programs for the longest time.

    Args:
        found: the phases; those of calls count.
        ranks: the samples of each rank's process.
    """
    calls = [window for window in found if window.phase == "call"]
    begins = [window.began for window in calls]
    told: dict[str, list[Counter[str]]] = {window.test: [] for window in calls}
    for rank in ranks:
        own: dict[str, Counter[str]] = {}
        for sample in rank:
            place = bisect_right(begins, sample.at) - 1
            if place >= 0 and sample.at <= calls[place].ended:
                own.setdefault(calls[place].test, Counter())[doing(sample.stack)] += 1
        for test, doings in own.items():
            told[test].append(doings)
    return {
        test: Counter({words: count * EVERY for words, count in max(of_ranks, key=_busy).items()})
        for test, of_ranks in told.items()
        if of_ranks
    }


def _busy(doings: Counter[str]) -> int:
    return doings.total() - doings[IDLE]
