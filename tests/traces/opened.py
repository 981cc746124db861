"""A merged trace, opened and checked by the rules of Chrome's Trace Event Format and of Perfetto's importer."""

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

Event = dict[str, Any]
ROUNDING = 2e-3  # microseconds


class Opened:
    """A trace file whose events keep the rules."""

    def __init__(self, path: Path) -> None:
        """Read the file and check its rules."""
        self.data = json.loads(gzip.decompress(path.read_bytes()))
        self.events: list[Event] = self.data["traceEvents"]
        assert {event["ph"] for event in self.events} <= {"X", "M", "s", "t", "f"}
        self.slices = [event for event in self.events if event["ph"] == "X"]
        self.processes = self._names("process_name", "pid")
        self.threads = self._names("thread_name", "tid")
        self._check_places()
        self._check_nesting()
        self.arrows = self._check_arrows()

    def collectives(self) -> list[list[Event]]:
        """The slices of each tied collective."""
        ties = {key: points for key, points in self.arrows.items() if key[0] == "collective"}
        return [[self.at(point) for point in points] for _, points in sorted(ties.items())]

    def at(self, point: Event) -> Event:
        """The innermost slice around a point."""
        around = [
            one
            for one in self.slices
            if (one["pid"], one["tid"]) == (point["pid"], point["tid"])
            and one["ts"] - ROUNDING <= point["ts"] <= one["ts"] + one["dur"] + ROUNDING
        ]
        assert around, point
        return min(around, key=lambda one: one["dur"])

    def _names(self, kind: str, key: str) -> dict[int, str]:
        return {event[key]: event["args"]["name"] for event in self.events if event["name"] == kind}

    def _check_places(self) -> None:
        for event in self.events:
            assert event["pid"] in self.processes
            assert event["ph"] == "M" or event["ts"] > 0
        place: dict[int, int] = {}  # a thread's number belongs to one process
        for one in self.slices:
            assert one["tid"] in self.threads
            assert place.setdefault(one["tid"], one["pid"]) == one["pid"]

    def _check_nesting(self) -> None:
        ends: dict[int, list[float]] = defaultdict(list)
        for one in sorted(self.slices, key=lambda one: (one["ts"], -one["dur"])):
            stack = ends[one["tid"]]
            while stack and stack[-1] <= one["ts"] + ROUNDING:
                stack.pop()
            assert not stack or one["ts"] + one["dur"] <= stack[-1] + ROUNDING, one
            stack.append(one["ts"] + one["dur"])

    def _check_arrows(self) -> dict[tuple[str, int], list[Event]]:
        arrows: dict[tuple[str, int], list[Event]] = defaultdict(list)
        for event in self.events:
            if event["ph"] in "stf":
                arrows[event["cat"], event["id"]].append(event)
        for points in arrows.values():
            phases = "".join(point["ph"] for point in points)
            assert phases == "s" + "t" * (len(points) - 2) + "f", phases
            assert [point["ts"] for point in points] == sorted(point["ts"] for point in points)
            assert len({point["name"] for point in points}) == 1
            for point in points:
                self.at(point)
        return arrows
