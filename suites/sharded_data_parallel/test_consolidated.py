"""Training that goes on with a consolidated optimizer state is that of one device without interruption, exactly."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuperf import Ranks
from suites.sharded_data_parallel.programs.consolidated import BEFORE, resumed
from suites.shared.comparison import assert_same
from suites.shared.problems import RATES, Problem
from suites.shared.references import whole_batch
from suites.shared.strategies import seeds


@pytest.mark.ranks(2, 3)
@pytest.mark.examples(0.1)
@given(to=st.integers(0, 1), sharded=st.booleans(), late_group=st.booleans(), buckets=st.booleans(), seed=seeds)
@example(to=1, sharded=True, late_group=False, buckets=False, seed=1)
@example(to=0, sharded=False, late_group=True, buckets=True, seed=1)
def test_state_on_one_rank(ranks: Ranks, to: int, sharded: bool, late_group: bool, buckets: bool, seed: int) -> None:
    problem = Problem(world_size=ranks.world_size, seed=seed, outputs=3, microbatches=2, steps=BEFORE + 1)
    got = ranks.run(resumed, problem=problem, to=to, sharded=sharded, late_group=late_group, buckets=buckets)
    assert_same([packed.unpacked() for packed, _ in got], whole_batch(problem))
    keys = [f"{number}: ['momentum_buffer']" for number in range(len(problem.parameters()))]
    for rank, (_, told) in enumerate(got):
        assert told == keys, f"rank {rank}: the state has {told}, not {keys}"


def test_the_last_step_has_the_rate_of_the_first() -> None:
    """The training that goes on counts its steps from the beginning."""
    assert RATES[BEFORE] == RATES[0]
