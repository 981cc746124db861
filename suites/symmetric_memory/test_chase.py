"""A walk visits every place once before it comes back, and ends where it should."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.shared.step import second
from suites.symmetric_memory.programs import chase


@pytest.mark.parametrize("places", [1, 2, 3, 7, 64, 1000, 4096])
def test_a_walk_is_one_cycle_through_all_places(places: int) -> None:
    table, place, seen = chase.table_of(places), 0, []
    for steps in range(1, places + 1):
        place = int(table[place])
        seen.append(place)
        assert place == chase.end_of(places, steps)
    assert sorted(seen) == [chase.APART * number for number in range(places)]
    assert place == 0


def test_neighbours_in_time_are_far_apart() -> None:
    table = chase.table_of(4096)
    lines = torch.arange(4096) * chase.APART
    assert int((table[lines] - lines).abs().min()) > 1000 * chase.APART


@pytest.mark.ranks(1, 2, nodes=1)
@pytest.mark.parametrize("where", ["own", "host"])
def test_walks_end_where_they_should(ranks: Ranks, where: str) -> None:
    for steps in (1, 17, 300):
        for end in ranks.run(second, chase.walk, where=where, places=100, steps=steps):
            assert end.tolist() == [chase.end_of(100, steps)]


@pytest.mark.ranks(2, 4, 8, nodes=1, device="cuda", largest=True)
def test_walks_through_the_next_gpu(ranks: Ranks) -> None:
    for end in ranks.run(second, chase.walk, where="peer", places=4096, steps=5000):
        assert end.tolist() == [chase.end_of(4096, 5000)]


@pytest.mark.ranks(1, device="cuda")
def test_memory_of_another_name_is_refused(ranks: Ranks) -> None:
    with pytest.raises(ValueError, match="a table lies in own, peer, host memory, got 'there'"):
        ranks.run(second, chase.walk, where="there", places=2, steps=1)
