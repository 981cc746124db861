"""However torch recomputes, two steps of training are those of the chain rule, with the masks that forward drew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Ranks
from suites.activations.programs.recomputing import WAYS
from suites.activations.programs.techniques import train
from suites.activations.reference import arguments, assert_blocks, at_step
from suites.shared.step import each_step
from suites.shared.strategies import seeds


@pytest.mark.ranks(1)
@pytest.mark.examples(0.08)
@pytest.mark.parametrize("way", WAYS)
@given(blocks=st.integers(1, 3), rows=st.integers(1, 3), dropout=st.booleans(), seed=seeds)
def test_ways_to_recompute(ranks: Ranks, way: str, blocks: int, rows: int, dropout: bool, seed: int) -> None:
    # Selective recomputation keeps the chosen operations, and no random numbers.
    given_case = arguments(blocks=blocks, rows=rows, width=3, hidden=4, dropout=dropout, seed=seed)
    (steps,) = ranks.run(each_step, train, 2, technique=WAYS[way], **given_case)
    for number, got in enumerate(steps):
        assert_blocks(got, at_step(given_case, number), f"{way}, step {number + 1}")
