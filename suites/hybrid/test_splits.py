"""A model that is split otherwise than its mesh says is found, though it trains as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from pytest_gpuperf import Context, Ranks
from suites.hybrid import programs
from suites.hybrid.model import Llama
from suites.hybrid.programs import Mesh, Trained
from suites.hybrid.test_correctness import assert_split, assert_trained, fixed, reference

pytestmark = pytest.mark.ranks(4)


def with_whole_feed_forwards(ctx: Context, **kwargs: Any) -> Trained:
    """Each rank computes all hidden features: the same results, without a split."""

    def split(model: Llama, mesh: DeviceMesh) -> None:
        plan = {name: style for name, style in programs.tensor_plan().items() if "feed_forward" not in name}
        programs.split_model(model, mesh, plan)

    return programs.train(ctx, **kwargs, split=split)


def with_shards_over_replicas(ctx: Context, **kwargs: Any) -> Trained:
    """Fully sharded over all ranks of both axes: the same results, of a mesh that nobody asked for."""

    def split(model: Llama, mesh: DeviceMesh) -> None:
        for layer in model.layers.values():
            fully_shard(layer, mesh=mesh["replicate", "shard"]._flatten())
        fully_shard(model, mesh=mesh["replicate", "shard"]._flatten())

    return programs.train(ctx, **kwargs, split=split)


@pytest.mark.parametrize(
    ("broken", "mesh", "wrong"),
    [
        (
            with_whole_feed_forwards,
            {"pp": 2, "tp": 2},
            r"layers.0.feed_forward.gate.weight: holds \[12, 16\], not \[6, 16\]",
        ),
        (
            with_shards_over_replicas,
            {"replicate": 2, "shard": 2},
            r"embedding.weight: holds \[4, 16\], not \[8, 16\]",
        ),
    ],
    ids=["whole feed-forwards", "shards over replicas"],
)
def test_another_split_is_found(ranks: Ranks, broken: Callable[..., Trained], mesh: Mesh, wrong: str) -> None:
    given_case = fixed(mesh)
    got = ranks.run(broken, **given_case.arguments)
    assert_trained(got, given_case, reference(given_case))
    with pytest.raises(AssertionError, match=f"^rank 0, {wrong}"):
        assert_split(got, given_case)
