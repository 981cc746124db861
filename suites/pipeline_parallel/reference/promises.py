"""What a schedule promises: the share of a step in which each rank waits, and the memory that each rank needs.

p ranks, v stages a rank, m microbatches.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from suites.pipeline_parallel.programs.racing import Model, RankTime, stages_of
from suites.pipeline_parallel.reference.schedules import Durations, Op, simulate, table_of

EQUAL_BUBBLES = ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS")
"""Schedules whose bubble is (p - 1) / (v m + p - 1), however long forwards and backwards are; see test_reference.py."""
NANO = 1e9


class Measured:
    """The median duration of each operation of each stage, in nanoseconds."""

    def __init__(self, ranks: Sequence[Sequence[RankTime]]) -> None:
        """Takes the steps of each rank."""
        seconds: dict[tuple[int, str], list[float]] = {}
        for steps in ranks:
            for step in steps:
                for stage, kind, taken in step.ops:
                    seconds.setdefault((stage, kind), []).append(taken)
        self._medians = {key: round(NANO * statistics.median(taken)) for key, taken in seconds.items()}

    def of(self, op: Op) -> int:
        """The operation's duration."""
        return self._medians[op.stage, op.kind]


def bubbles(schedule: str, microbatches: int, ranks: Sequence[Sequence[RankTime]]) -> list[float]:
    """The share of a step in which each rank should wait.

    By the formula, if the schedule has one that no duration enters. Otherwise by the simulation of its table, with the
    durations that were measured: how long zero-bubble schedules wait depends on those.
    """
    stages = stages_of(schedule, len(ranks))
    if schedule in EQUAL_BUBBLES:
        chunks = microbatches * stages // len(ranks)
        return [(len(ranks) - 1) / (chunks + len(ranks) - 1)] * len(ranks)
    simulated = simulate(table_of(schedule, len(ranks), stages, microbatches), Measured(ranks))
    end = max(rank.now for rank in simulated)
    return [1 - rank.busy / end for rank in simulated]


def waits(ranks: Sequence[RankTime]) -> list[float]:
    """The share of one step in which each rank did wait; the step ends when the last rank does."""
    span = max(rank.span for rank in ranks)
    return [1 - rank.busy / span for rank in ranks]


def peak_bytes(schedule: str, model: Model, ranks: int) -> int:
    """Bytes of the rank that needs the most: weights, gradients, and what is saved of the microbatches in flight.

    The simulation counts those. Each keeps what its blocks save, and the stage's output, until its backward.
    """
    stages = stages_of(schedule, ranks)
    simulated = simulate(table_of(schedule, ranks, stages, model.microbatches), Durations())
    in_flight = max(rank.most_alive for rank in simulated)
    output = model.rows * model.width * model.dtype.itemsize
    of_stage = model.blocks // stages * model.saved_bytes + output
    return 2 * model.blocks // ranks * model.block_bytes + in_flight * of_stage
