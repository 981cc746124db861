"""How long each rank computes, communicates, and communicates while it computes nothing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pytest_gpuperf.traces.events import RankEvents, Slice, Step, list_outermost
from pytest_gpuperf.traces.profile import KINDS, RankTimes
from pytest_gpuperf.traces.spans import Span, compute_length, merge_spans, subtract_spans

ISSUES = ("c10d::", "_c10d_functional::")
"""How the names of operators begin that issue a collective or wait for one, and compute nothing."""


def compute_rank_times(events: RankEvents) -> RankTimes:
    """Return the medians over the steps of one rank.

    Raises:
        ValueError: the trace has no step, or of a GPU's work nothing.
    """
    if events.device != "cpu" and not any(one.on_device for one in events.slices):
        raise ValueError(
            f"the trace of rank {events.rank} has no event of {events.device}: torch.profiler could not use CUPTI; end "
            "other profilers of this GPU, and see what the rank printed"
        )
    found = [_compute_step_times(step) for step in events.steps]
    if not found:
        raise ValueError(f"the trace of rank {events.rank} has no step of its program")
    step, compute, communication, exposed = (statistics.median(values) for values in zip(*found, strict=True))
    return RankTimes(events.rank, events.device, step, compute, communication, exposed)


@dataclass(frozen=True, slots=True)
class Work:
    """What a rank's hardware did in one step: a GPU, or without one the cores of the host."""

    on_host: bool
    compute: tuple[Slice, ...]
    communication: tuple[Slice, ...]
    other: tuple[Slice, ...]
    """Copies and fills of a GPU's memory."""

    @classmethod
    def of(cls, step: Step) -> Self:
        """Sort the slices of a step; on the host, only operators that no other one calls are taken."""
        device = [one for one in step.slices if one.on_device]
        if device:
            kinds = {kind: tuple(one for one in device if one.kind == kind) for kind in KINDS}
            return cls(False, kinds["compute"], kinds["communication"], kinds["copy"])
        communication = tuple(one for one in step.slices if one.kind == "communication")
        # gloo's threads copy tensors within a collective: that is a part of it.
        inside = {
            track: merge_spans((one.start, one.end) for one in communication if one.track == track)
            for track in {one.track for one in communication}
        }
        compute = tuple(
            one
            for one in _list_outer_operators(step.slices)
            if not one.name.startswith(ISSUES) and not _covers(inside.get(one.track, ()), one)
        )
        return cls(True, compute, communication, ())


def _compute_step_times(step: Step) -> tuple[float, float, float, float]:
    """Seconds of the step, of its compute, of its communication, and of what of that is exposed."""
    work = Work.of(step)
    communication, compute = (
        merge_spans((one.start, one.end) for one in slices) for slices in (work.communication, work.compute)
    )
    everything = [*work.compute, *work.communication, *work.other]
    start = step.start if work.on_host else min(one.start for one in everything)
    end = max([step.end] * work.on_host + [one.end for one in everything])
    exposed = compute_length(subtract_spans(communication, compute))
    return (end - start) / 1e6, compute_length(compute) / 1e6, compute_length(communication) / 1e6, exposed / 1e6


def _list_outer_operators(slices: Sequence[Slice]) -> list[Slice]:
    tracks: dict[tuple[str, int], list[Slice]] = {}
    for one in slices:
        if one.category == "cpu_op":
            tracks.setdefault(one.track, []).append(one)
    return [one for track in tracks.values() for one in list_outermost(track)]


def _covers(spans: Sequence[Span], one: Slice) -> bool:
    return any(start <= one.start and one.end <= end for start, end in spans)
