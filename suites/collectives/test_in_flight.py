"""Collectives that are in flight together do not disturb each other, and a subgroup's stay in it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Ranks
from suites.collectives.programs.in_flight import NAMES, flown, together
from suites.collectives.reference import Collective, NeverRight
from suites.shared.strategies import dtypes, seeds, worlds


@st.composite
def flights(draw: st.DrawFn, size: int) -> list[Collective]:
    """Two to five collectives of the world, or of ranks of it that are not its first ones only."""
    world = tuple(range(size))
    memberships = [members for members in (world, world[1:], world[::2], world[1::2]) if len(members) > 1]
    found = []
    for _ in range(draw(st.integers(2, 5))):
        members = draw(st.sampled_from(memberships))
        row = st.tuples(*[st.sampled_from([0, 1, 5, 4097])] * len(members))
        dtype = draw(dtypes)
        found.append(
            Collective(
                name=draw(st.sampled_from(NAMES)),
                numel=draw(st.sampled_from([5, 4097, 70_001])),
                dtype=dtype,
                seed=draw(seeds),
                members=members,
                op=draw(st.sampled_from(["sum", "max"])),
                root=draw(st.sampled_from(members)),
                splits=draw(st.tuples(*[row] * len(members))),
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class Noted:
    """A flight that only notes when it starts and when it lands."""

    place: int
    events: list[tuple[str, int, int]]

    def start(self, number: int) -> None:
        self.events.append(("starts", self.place, number))

    def land(self) -> Iterator[str]:
        self.events.append(("lands", self.place, 0))
        yield f"{self.place} is wrong"


def test_all_flights_have_started_before_the_first_one_lands_and_they_land_in_the_order_asked_for() -> None:
    """One after the other, or in the order of their starts, they give the same, and nothing has been in flight."""
    events: list[tuple[str, int, int]] = []
    flights: Any = {place: Noted(place, events) for place in (0, 2, 3)}
    assert list(flown(flights, [3, 1, 0, 2], 5)) == ["3 is wrong", "0 is wrong", "2 is wrong"]
    assert events == [*(("starts", place, 5) for place in (0, 2, 3)), *(("lands", place, 0) for place in (3, 0, 2))]


@pytest.mark.ranks(2, 4, 8)
@pytest.mark.examples(0.5)
@given(data=st.data())
def test_collectives_in_flight_together(ranks: Ranks, data: st.DataObject) -> None:
    world = data.draw(worlds(ranks))
    collectives = data.draw(flights(world.world_size))
    order = data.draw(st.permutations(range(len(collectives))))
    wrong = [text for of_rank in world.run(together, collectives=collectives, order=order) for text in of_rank]
    assert not wrong, "\n".join(wrong)


@pytest.mark.ranks(2)
def test_what_is_wrong_is_reported_of_each_step(ranks: Ranks) -> None:
    case = NeverRight(name="all_reduce", numel=1, dtype=torch.float32, seed=1, members=(0, 1))
    told = ranks.run(together, collectives=[case], order=[0], steps=3)
    assert told == [["in flight with others: not right"] * 3] * ranks.world_size


@pytest.mark.ranks(3, 4)
def test_overlapping_groups_with_a_rank_that_comes_late(ranks: Ranks) -> None:
    size = ranks.world_size
    world = tuple(range(size))
    cases = [
        (name, members, dtype)
        for name in NAMES
        for members, dtype in ((world[1:], torch.float32), (world[:-1], torch.float16), (world, torch.float64))
    ]
    collectives = [
        Collective(
            name=name,
            members=members,
            numel=4097,
            dtype=dtype,
            seed=4,
            op="avg" if name == "all_reduce" else "sum",
            root=members[-1],
            splits=tuple(tuple((i + 2 * j) % 3 for j in range(len(members))) for i in range(len(members))),
        )
        for name, members, dtype in cases
    ]
    order = random.Random(5).sample(range(len(cases)), len(cases))
    wrong = ranks.run(together, collectives=collectives, order=order, late=size - 1)
    assert not any(wrong), "\n".join(text for of_rank in wrong for text in of_rank)
