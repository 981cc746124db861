"""A model gets another one's whole state, whatever part of it has no storage yet, and all that has no dimension."""

from __future__ import annotations

import pytest

from pytest_gpuperf import Ranks
from suites.checkpoint.programs.partly_made import entered, whole
from suites.shared.comparison import assert_same


@pytest.mark.ranks(2)
@pytest.mark.parametrize("shard", [True, False], ids=["sharded", "replicated"])
@pytest.mark.parametrize("broadcast", [True, False], ids=["broadcast", "on all ranks"])
def test_a_state_that_enters(ranks: Ranks, shard: bool, broadcast: bool) -> None:
    for lacking in (False, True):
        got = ranks.run(entered, shard=shard, broadcast=broadcast, lacking=lacking)
        assert_same(got, [whole(1, scaled=not shard)] * 2, ordered=False)
