"""However torch recomputes, two steps of training are those of the chain rule, with the masks that forward drew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Ranks
from suites.activations.programs.further import ALL
from suites.activations.programs.recomputing import refused, sines, transparent
from suites.activations.programs.techniques import train
from suites.activations.reference import arguments, assert_blocks, at_step
from suites.shared.step import each_step
from suites.shared.strategies import seeds


@pytest.mark.ranks(1)
@pytest.mark.examples(0.08)
@pytest.mark.parametrize("way", ALL)
@given(blocks=st.integers(1, 3), rows=st.integers(1, 3), dropout=st.booleans(), seed=seeds)
def test_ways_to_recompute(ranks: Ranks, way: str, blocks: int, rows: int, dropout: bool, seed: int) -> None:
    # Selective recomputation keeps the chosen operations, and no random numbers.
    given_case = arguments(blocks=blocks, rows=rows, width=3, hidden=4, dropout=dropout, seed=seed)
    (steps,) = ranks.run(each_step, train, 2, technique=ALL[way], **given_case)
    for number, got in enumerate(steps):
        assert_blocks(got, at_step(given_case, number), f"{way}, step {number + 1}")


@pytest.mark.ranks(1)
def test_a_wrapper_is_not_seen(ranks: Ranks) -> None:
    """A state has the names of the wrapped layers and fits models with and without wrappers."""
    of_layers = ["0.weight", "0.bias", "1.weight", "1.bias"]
    (names,) = ranks.run(transparent)
    of_model = [f"0.{name}" for name in of_layers]
    assert names == [*of_model, *of_layers, *of_model]


@pytest.mark.ranks(1)
def test_only_what_a_policy_saves_is_not_computed_again(ranks: Ranks) -> None:
    (got,) = ranks.run(sines)
    times = {"MUST_SAVE": 1, "PREFER_SAVE": 1, "MUST_RECOMPUTE": 2, "PREFER_RECOMPUTE": 2}
    ways = ("function", "wrapper", "named wrapper")
    assert got == {f"{policy} by {way}": count for policy, count in times.items() for way in ways}


@pytest.mark.ranks(1)
@pytest.mark.parametrize(("check", "expected"), [("default", [True, True, False]), ("none", [False, False, False])])
def test_a_recomputation_of_another_kind_is_refused(ranks: Ranks, check: str, expected: list[bool]) -> None:
    (got,) = ranks.run(refused, check=check)
    assert got == expected, f"another shape, another dtype, the same: refused {got}, expected {expected}"
