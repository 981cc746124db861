"""Pipeline schedules as tables, and a simulation of one: how long ranks wait, and what memory they need.

p ranks, v stages a rank, m microbatches. An operation is one microbatch's forward (F) or backward (B) of one
stage, or half a backward: for the input (I), which the stage before waits for, and for the weights (W), which
nobody waits for.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

from torch.distributed.pipelining.schedules import PipelineScheduleMulti

from suites.pipeline_parallel.programs.stages import RUNNERS, SINGLE


class Op(NamedTuple):
    """One microbatch's turn on one stage."""

    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        """As torch writes it: ``2F0`` is stage 2's forward of microbatch 0."""
        return f"{self.stage}{self.kind}{self.microbatch}"


# What each rank does, in order. Operations in one tuple run as one: their results leave together.
Table = list[list[tuple[Op, ...]]]


def gpipe(ranks: int, microbatches: int) -> Table:
    """All forwards, then all backwards (arXiv 1811.06965, figure 2c)."""
    return [[(Op(rank, kind, m),) for kind in "FB" for m in range(microbatches)] for rank in range(ranks)]


def one_forward_one_backward(ranks: int, microbatches: int) -> Table:
    """Forwards until the first backward arrives, then one backward for each forward (arXiv 2104.04473, figure 4)."""
    table: Table = []
    for rank in range(ranks):
        ahead = min(microbatches, ranks - rank)
        row: list[tuple[Op, ...]] = [(Op(rank, "F", m),) for m in range(ahead)]
        for m in range(microbatches):
            row.append((Op(rank, "B", m),))
            if m + ahead < microbatches:
                row.append((Op(rank, "F", m + ahead),))
        table.append(row)
    return table


@functools.cache  # making one takes torch milliseconds
def torch_table(runner: type[PipelineScheduleMulti], ranks: int, stages: int, microbatches: int) -> Table:
    """The table that torch makes for a schedule of several stages a rank; no process group is needed for it."""
    stage: Any = SimpleNamespace(num_stages=stages, group_size=ranks, group_rank=0, submod=None)
    order = runner([stage] * (stages // ranks), microbatches).pipeline_order
    return [[ops(str(action)) for action in order[rank] if action is not None] for rank in range(ranks)]


def ops(action: str) -> tuple[Op, ...]:
    """The operations in one of torch's actions: ``2F0``, or ``(2F0;5B1)OVERLAP_F_B``."""
    return tuple(Op(int(stage), kind, int(m)) for stage, kind, m in re.findall(r"(\d+)([FBIW])(\d+)", action))


def table_of(schedule: str, ranks: int, stages: int, microbatches: int) -> Table:
    """What each rank does in a schedule of ``stages.RUNNERS``."""
    if schedule in SINGLE:
        return {"GPipe": gpipe, "1F1B": one_forward_one_backward}[schedule](ranks, microbatches)
    return torch_table(RUNNERS[schedule], ranks, stages, microbatches)


def takes(schedule: str, ranks: int, microbatches: int) -> bool:
    """Whether the schedule is defined for so many microbatches, of a model of the fewest stages."""
    if schedule in ("Interleaved1F1B", "InterleavedZeroBubble"):
        return microbatches % max(1, microbatches // ranks) == 0
    return microbatches >= {"1F1B": ranks, "DualPipeV": 2 * ranks}.get(schedule, 1)


class Lasting(Protocol):
    """How long operations take."""

    def of(self, op: Op, /) -> int:
        """The operation's duration, in any unit."""
        ...


class Durations(NamedTuple):
    """How long one stage's operations take, in any unit; a whole backward takes as long as its halves."""

    forward: int = 1
    input: int = 1
    weight: int = 1

    def of(self, op: Op) -> int:
        """The operation's duration."""
        return {"F": self.forward, "I": self.input, "W": self.weight, "B": self.input + self.weight}[op.kind]


@dataclass
class Rank:
    """What a rank has done so far."""

    busy: int = 0
    started: int | None = None
    now: int = 0
    alive: int = 0
    most_alive: int = 0

    @property
    def span(self) -> int:
        """From the start of its first operation to the end of its last."""
        return self.now - (self.started or 0)

    def runs(self, op: Op, ready: int, duration: int) -> None:
        """Waits until the operation's inputs are there, and does it."""
        start = max(self.now, ready)
        self.started = start if self.started is None else self.started
        self.now = start + duration
        self.busy += duration
        # A stage keeps what its forward saved until the gradients of its weights are done.
        self.alive += {"F": 1, "I": 0, "B": -1, "W": -1}[op.kind]
        self.most_alive = max(self.most_alive, self.alive)


def _inputs(op: Op, stages: int) -> Iterator[tuple[int, str, int]]:
    """The results that an operation needs: (stage, F, I or W, microbatch); a whole backward gives I and W."""
    if op.kind == "F" and op.stage > 0:
        yield op.stage - 1, "F", op.microbatch
    if op.kind in "BI":
        yield op.stage, "F", op.microbatch
        if op.stage < stages - 1:
            yield op.stage + 1, "I", op.microbatch
    if op.kind == "W":
        yield op.stage, "I", op.microbatch


def simulate(table: Table, durations: Lasting) -> list[Rank]:
    """Runs the table, each operation as soon as its rank and its inputs are there; sending takes no time.

    Raises:
        ValueError: an operation waits for one that never comes.
    """
    stages = 1 + max(op.stage for row in table for group in row for op in group)
    ranks = [Rank() for _ in table]
    done: dict[tuple[int, str, int], int] = {}
    left = [list(reversed(row)) for row in table]
    progress = True
    while progress:
        progress = False
        for rank, row in zip(ranks, left, strict=True):
            while row:
                group = row[-1]
                inside = {(op.stage, "I" if op.kind == "B" else op.kind, op.microbatch) for op in group}
                needs = [[key for key in _inputs(op, stages) if key not in inside] for op in group]
                if any(key not in done for keys in needs for key in keys):
                    break
                for op, keys in zip(group, needs, strict=True):
                    rank.runs(op, max((done[key] for key in keys), default=0), durations.of(op))
                done.update(dict.fromkeys(inside, rank.now))
                row.pop()
                progress = True
    stuck = [f"rank {number} at {row[-1][0]}" for number, row in enumerate(left) if row]
    if stuck:
        raise ValueError(f"the schedule deadlocks: {', '.join(stuck)}")
    return ranks
