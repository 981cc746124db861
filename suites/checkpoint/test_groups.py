"""What some of the ranks save and load by themselves is theirs, and what only some of them have reaches those."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Shard

from pytest_gpuperf import Ranks
from suites.checkpoint.programs.groups import MEMBERS, OTHERS, of_a_group, on_parts_of_the_world, wholes
from suites.shared.comparison import assert_same
from suites.shared.inputs import integers
from suites.shared.sharding import shard

pytestmark = pytest.mark.ranks(3)


@pytest.mark.parametrize("background", [False, True], ids=["at once", "in the background"])
def test_a_group_that_saves_without_rank_0(ranks: Ranks, tmp_path: Path, background: bool) -> None:
    whole = wholes()
    (alone,), *of_group = ranks.run(of_a_group, folder=tmp_path, background=background)
    assert_same([alone], [{name: -value for name, value in whole.items()}])
    for place, (rank, (loaded, named)) in enumerate(zip(MEMBERS, of_group, strict=True)):
        values = loaded.pop("nested")
        assert values == {f"value {rank}": 7 + rank, "common": 1}, f"rank {rank} has {values}"
        value = named.pop("nested")
        assert value == {f"value {rank}": 7 + rank}, f"rank {rank} has {value} by its name"
        own = {f"own {rank}": torch.full((2 + rank,), 3.0 + rank)}
        shards = {name: shard(whole[name], 2, 1)[place] for name in ("rows", "one")}
        assert_same([loaded], [{**shards, "replica": whole["replica"], **own}])
        assert_same([named], [{"rows": whole["rows"], **own}], ordered=False)


def test_tensors_that_some_ranks_share(ranks: Ranks, tmp_path: Path) -> None:
    whole = integers((5, 4), torch.float32, seed=1)
    expected: list[dict[str, Any]] = [{} for _ in range(3)]
    for number, (name, (of, (placement,))) in enumerate(OTHERS.items(), 1):
        assert isinstance(placement, Shard)
        for rank, part in zip(of, shard(number * whole, len(of), placement.dim), strict=True):
            expected[rank][name] = part
    assert_same(ranks.run(on_parts_of_the_world, folder=tmp_path, whole=whole), expected)
