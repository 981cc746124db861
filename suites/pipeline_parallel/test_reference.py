"""Simulated schedules wait and remember as much as the literature says; the simulation itself is what is trusted.

F, I, W: how long a stage's forward and the halves of its backward take, B = I + W.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suites.pipeline_parallel.programs.stages import placed
from suites.pipeline_parallel.reference.schedules import Durations, Op, Rank, Table, simulate, table_of

RANKS = st.integers(1, 5)
PER_RANK = st.integers(1, 3)
ROUNDS = st.integers(1, 2)
EXTRA = st.integers(0, 5)
durations = st.builds(Durations, *[st.integers(1, 4)] * 3)


def simulated(schedule: str, ranks: int, per_rank: int, microbatches: int, given_durations: Durations) -> list[Rank]:
    return simulate(table_of(schedule, ranks, ranks * per_rank, microbatches), given_durations)


def bubbles(ranks: list[Rank]) -> list[int]:
    """How long each rank waits within the step, which ends when the last rank does."""
    end = max(rank.now for rank in ranks)
    return [end - rank.busy for rank in ranks]


def idle_fraction(ranks: list[Rank]) -> Fraction:
    end = max(rank.now for rank in ranks)
    return Fraction(sum(bubbles(ranks)), len(ranks) * end)


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
@given(ranks=RANKS, extra=EXTRA, lasting=durations)
def test_one_stage_a_rank(schedule: str, ranks: int, extra: int, lasting: Durations) -> None:
    # 1F1B waits as long as GPipe: (p - 1)(F + B) beside m(F + B) of work (arXiv 2104.04473, section 2.2.1).
    microbatches = ranks + extra
    got = simulated(schedule, ranks, 1, microbatches, lasting)
    assert idle_fraction(got) == Fraction(ranks - 1, microbatches + ranks - 1)
    # GPipe keeps all, 1F1B as many as are ahead of a stage's first backward, itself included (same section).
    kept = [microbatches if schedule == "GPipe" else ranks - rank for rank in range(ranks)]
    assert [rank.most_alive for rank in got] == kept


@given(ranks=RANKS, microbatches=st.integers(1, 8), lasting=durations)
def test_gpipe_with_fewer_microbatches_than_ranks(ranks: int, microbatches: int, lasting: Durations) -> None:
    got = simulated("GPipe", ranks, 1, microbatches, lasting)
    assert idle_fraction(got) == Fraction(ranks - 1, microbatches + ranks - 1)


@pytest.mark.parametrize("schedule", ["Interleaved1F1B", "LoopedBFS"])
@given(ranks=RANKS, per_rank=PER_RANK, rounds=ROUNDS, lasting=durations)
def test_several_stages_a_rank(schedule: str, ranks: int, per_rank: int, rounds: int, lasting: Durations) -> None:
    # Of v stages a rank, each a v-th of the work, the bubble is a v-th: (p - 1)(F + B) beside v*m(F + B)
    # (arXiv 2104.04473, section 2.2.2; arXiv 2211.05953, section 3.2).
    microbatches = rounds * ranks
    got = simulated(schedule, ranks, per_rank, microbatches, lasting)
    assert idle_fraction(got) == Fraction(ranks - 1, per_rank * microbatches + ranks - 1)
    # Breadth first keeps all. Depth first keeps those of the warm-up, 2(p - r - 1) + (v - 1)p in the code of
    # the first paper (megatron.core.pipeline_parallel.schedules), and the one in its turn.
    ahead = [2 * (ranks - rank - 1) + (per_rank - 1) * ranks + 1 for rank in range(ranks)]
    every = per_rank * microbatches
    kept = [every if schedule == "LoopedBFS" else min(every, count) for count in ahead]
    assert [rank.most_alive for rank in got] == kept


@given(ranks=RANKS, per_rank=PER_RANK, rounds=ROUNDS, lasting=durations)
def test_interleaved_zero_bubble(ranks: int, per_rank: int, rounds: int, lasting: Durations) -> None:
    # A rank waits (p - 1)(F + I - W), and keeps what 1F1B does, p microbatches of v stages (arXiv 2401.10241,
    # table 1, ZB-H1). That is as long as backwards for weights are what fills gaps, and fit in: W <= F, I.
    lasting = lasting._replace(weight=min(lasting))
    got = simulated("InterleavedZeroBubble", ranks, per_rank, rounds * ranks, lasting)
    assert bubbles(got) == [(ranks - 1) * (lasting.forward + lasting.input - lasting.weight)] * ranks
    assert [rank.most_alive for rank in got] == [per_rank * ranks] * ranks


@given(ranks=RANKS, extra=EXTRA, unit=st.integers(1, 4))
def test_zbv_zero_bubble(ranks: int, extra: int, unit: int) -> None:
    # Once begun, no rank ever waits, if F = I = W and there are 2p microbatches or more; it keeps what 1F1B
    # does, p microbatches of both stages (arXiv 2401.10241, section 6).
    got = simulated("ZBVZeroBubble", ranks, 2, 2 * ranks + extra, Durations(unit, unit, unit))
    assert [rank.span - rank.busy for rank in got] == [0] * ranks
    assert [rank.most_alive for rank in got] == [2 * ranks] * ranks


@given(ranks=RANKS, extra=EXTRA, lasting=durations)
def test_dualpipev(ranks: int, extra: int, lasting: Durations) -> None:
    # A rank waits (p - 1)(F&B + B - 3W) and keeps 2p + 1 microbatches of a stage (the table in the README of
    # github.com/deepseek-ai/DualPipe, whose PP is our 2p stages). Without overlap F&B takes as long as F and B.
    # That is where forwards are in step with backwards for inputs, F = I, and W is no longer.
    lasting = lasting._replace(forward=lasting.input, weight=min(lasting.input, lasting.weight))
    forward, backward, weight = lasting.forward, lasting.input + lasting.weight, lasting.weight
    got = simulated("DualPipeV", ranks, 2, 2 * ranks + extra, lasting)
    assert bubbles(got) == [(ranks - 1) * (forward + backward + backward - 3 * weight)] * ranks
    assert [rank.most_alive for rank in got] == [2 * ranks + 1] * ranks


def test_a_table_that_deadlocks_is_found() -> None:
    # Both ranks begin with what the other has yet to do.
    table: Table = [
        [(Op(0, "F", 0),), (Op(0, "B", 0),), (Op(0, "F", 1),), (Op(0, "B", 1),)],
        [(Op(1, "F", 1),), (Op(1, "B", 1),), (Op(1, "F", 0),), (Op(1, "B", 0),)],
    ]
    with pytest.raises(ValueError, match=r"^the schedule deadlocks: rank 0 at 0B0, rank 1 at 1F1$"):
        simulate(table, Durations())


@pytest.mark.parametrize(
    ("schedule", "stages", "takes"),
    [
        ("GPipe", 5, "4"),
        ("1F1B", 8, "4"),
        ("Interleaved1F1B", 0, "a multiple of 4"),
        ("LoopedBFS", 6, "a multiple of 4"),
        ("InterleavedZeroBubble", 3, "a multiple of 4"),
        ("ZBVZeroBubble", 4, "8"),
        ("DualPipeV", 12, "8"),
    ],
)
def test_stages_that_a_schedule_does_not_take(schedule: str, stages: int, takes: str) -> None:
    with pytest.raises(ValueError, match=rf"^{stages} stages on 4 ranks: {schedule} takes {takes}$"):
        placed(schedule, 0, 4, stages)


@pytest.mark.parametrize("schedule", ["ZBVZeroBubble", "DualPipeV"])
def test_torch_too_takes_two_stages_a_rank_for_a_v(schedule: str) -> None:
    with pytest.raises(ValueError, match="requires exactly 2 stages per rank"):
        table_of(schedule, 2, 6, 8)
