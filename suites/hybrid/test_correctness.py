"""A Llama-shaped model trains on a mesh of ranks as it does on one device: losses, gradients, and parameters after.

And each rank's group on each axis of the mesh is the one that the mesh's formula gives, and its part of each parameter
as large as the mesh says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Partial
from torch.distributed.tensor.parallel import RowwiseParallel
from torch.nn import functional

from pytest_gpuperf import Context, Ranks
from suites.hybrid.programs import training as programs
from suites.hybrid.programs.model import Attention, Config, Llama
from suites.hybrid.programs.training import Mesh, Trained
from suites.hybrid.reference import Batches, assert_as_one_device, assert_groups, assert_split, case, fixed, one_device
from suites.shared.strategies import seeds

pytestmark = pytest.mark.ranks(4)

PIPELINED: list[Mesh] = [{"shard": 2, "pp": 2}, {"pp": 2, "tp": 2}]
SHARDED: list[Mesh] = [{"shard": 2, "tp": 2}, {"replicate": 2, "shard": 2}]
OF_EIGHT: list[Mesh] = [
    {"shard": 2, "pp": 2, "tp": 2},
    {"replicate": 2, "shard": 2, "tp": 2},
    {"replicate": 2, "shard": 2, "pp": 2},
]


def named(mesh: Mesh) -> str:
    return " ".join(f"{axis}{degree}" for axis, degree in mesh.items())


@pytest.mark.parametrize("meshes", [PIPELINED, SHARDED], ids=["pipelined", "sharded"])
@pytest.mark.examples(0.4)  # each builds a model and its process groups on every rank
@given(data=st.data(), microbatches=st.integers(2, 3), microbatch=st.integers(1, 2), seed=seeds)
def test_training(
    ranks: Ranks, data: st.DataObject, meshes: list[Mesh], microbatches: int, microbatch: int, seed: int
) -> None:
    drawn = case(
        data.draw(st.sampled_from(meshes)),
        # DTensor plans each operation anew for each shape it meets: few shapes.
        config=Config(layers=data.draw(st.integers(2, 3)), kv_heads=data.draw(st.sampled_from([2, 4]))),
        length=5,
        microbatch=microbatch,
        microbatches=microbatches,
        seed=seed,
        schedule=data.draw(st.sampled_from(sorted(programs.SCHEDULES))),
    )
    got = ranks.run(programs.train, **drawn.arguments)
    assert_as_one_device(got, drawn, one_device(drawn))
    assert_split(got, drawn)


@pytest.mark.ranks(8)
def test_training_on_three_axes(ranks: Ranks) -> None:
    mesh, *_ = OF_EIGHT
    given_case = fixed(mesh)
    got = ranks.run(programs.train, **given_case.arguments)
    assert_as_one_device(got, given_case, one_device(given_case))
    assert_split(got, given_case)


@pytest.mark.ranks(8, device="cuda")  # eight processes on a laptop's cores take long
@pytest.mark.parametrize("mesh", OF_EIGHT[1:], ids=named)
def test_training_on_other_three_axes(ranks: Ranks, mesh: Mesh) -> None:
    given_case = fixed(mesh)
    got = ranks.run(programs.train, **given_case.arguments)
    assert_as_one_device(got, given_case, one_device(given_case))
    assert_split(got, given_case)


class Softmax(Attention):
    """Somebody's own attention, which does step by step what ours leaves to one operation."""

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        groups = query.unflatten(1, (key.shape[1], -1))
        scores = torch.einsum("bghqd,bgkd->bghqk", groups, key) / math.sqrt(self.head_dim)
        future = torch.ones_like(scores, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        return torch.einsum("bghqk,bgkd->bghqd", weights, value).flatten(1, 2)


@pytest.mark.parametrize("mesh", PIPELINED + SHARDED, ids=named)
def test_attention_of_your_own(ranks: Ranks, mesh: Mesh) -> None:
    given_case = fixed(mesh)
    got = ranks.run(programs.train, **given_case.arguments, attention=Softmax)
    assert_as_one_device(got, given_case, one_device(given_case))


def with_partial_sums(ctx: Context, **kwargs: Any) -> Trained:
    """The heads' outputs are not summed over ``tp``."""

    def split(model: Llama, mesh: DeviceMesh) -> None:
        plan = programs.tensor_plan() | {"attention.output": RowwiseParallel(output_layouts=Partial())}
        programs.split_model(model, mesh, plan)

    return programs.train(ctx, **kwargs, split=split)


def with_replicas_that_never_meet(ctx: Context, **kwargs: Any) -> Trained:
    """Gradients are reduced over ``shard`` alone."""
    return programs.train(ctx, **kwargs, split=lambda model, mesh: programs.split_model(model, mesh["shard"]))


def with_one_share_for_all(ctx: Context, *, batches: Batches, **kwargs: Any) -> Trained:
    """Every rank trains on the share of the first."""
    first = [(x.chunk(2)[0].repeat(2, 1), target.chunk(2)[0].repeat(2, 1)) for x, target in batches]
    return programs.train(ctx, batches=first, **kwargs)


def with_the_share_of_another_rank(ctx: Context, *, batches: Batches, **kwargs: Any) -> Trained:
    """Ranks take each other's shares: the mean over all of them is the same."""
    others = [(x.roll(len(x) // 2, 0), target.roll(len(x) // 2, 0)) for x, target in batches]
    return programs.train(ctx, batches=others, **kwargs)


def with_unscaled_gradients(ctx: Context, **kwargs: Any) -> Trained:
    """The microbatches' gradients are summed, not averaged."""
    return programs.train(ctx, **kwargs, scale_grads=False)


class Seeing(Attention):
    """Hides no future token."""

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)


def with_the_future_seen(ctx: Context, **kwargs: Any) -> Trained:
    return programs.train(ctx, **kwargs, attention=Seeing)


@pytest.mark.deliberate_break
@pytest.mark.parametrize(
    ("broken", "mesh", "wrong"),
    [
        (with_partial_sums, {"pp": 2, "tp": 2}, "first loss"),
        (with_partial_sums, {"shard": 2, "tp": 2}, "first loss"),
        (with_replicas_that_never_meet, {"replicate": 2, "shard": 2}, "rank 0, embedding.weight gradient"),
        (with_one_share_for_all, {"shard": 2, "pp": 2}, "first loss"),
        (with_the_share_of_another_rank, {"shard": 2, "pp": 2}, "first loss"),
        (with_unscaled_gradients, {"shard": 2, "pp": 2}, "rank 0, embedding.weight gradient"),
        (with_the_future_seen, {"shard": 2, "tp": 2}, "first loss"),
    ],
    ids=lambda value: named(value) if isinstance(value, dict) else getattr(value, "__name__", value).replace("_", " "),
)
def test_a_broken_training_is_found(ranks: Ranks, broken: Callable[..., Trained], mesh: Mesh, wrong: str) -> None:
    given_case = fixed(mesh)
    got = ranks.run(broken, **given_case.arguments)
    with pytest.raises(AssertionError, match=f"^{wrong}: "):
        assert_as_one_device(got, given_case, one_device(given_case))


@pytest.mark.deliberate_break
def test_a_mesh_of_swapped_axes_is_found(ranks: Ranks) -> None:
    got = ranks.run(programs.groups_of, mesh={"pp": 2, "tp": 2})
    assert_groups(got, {"pp": 2, "tp": 2})
    swapped = [{"pp": groups["tp"], "tp": groups["pp"]} for groups in got]
    with pytest.raises(AssertionError, match=r"^rank 0 is with \[0, 1\] on the axis pp"):
        assert_groups(swapped, {"pp": 2, "tp": 2})


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ({"shard": 2, "pp": 2, "tp": 2}, "the mesh shard 2 x pp 2 x tp 2 has 8 ranks, the world has 2"),
        ({"tp": 1}, "the mesh tp 1 has 1 ranks, the world has 2"),
        ({"dp": 2}, "mesh axes .'dp'. are none of"),
    ],
    ids=["larger", "smaller", "unknown axis"],
)
def test_a_mesh_that_does_not_fit(ranks: Ranks, mesh: Mesh, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        ranks.run(programs.groups_of, mesh=mesh)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("mesh", "config", "message"),
    [
        ({"tp": 2}, Config(heads=3, kv_heads=3), "tp 2 divides not all of Config"),
        ({"tp": 2}, Config(hidden=13), "tp 2 divides not all of Config"),
        ({"tp": 2}, Config(vocabulary=17), "tp 2 divides not all of Config"),
        ({"pp": 2}, Config(layers=1), "1 layers make no 2 stages"),
    ],
    ids=["heads", "hidden features", "vocabulary", "layers"],
)
def test_a_model_that_does_not_fit_the_mesh(ranks: Ranks, mesh: Mesh, config: Config, message: str) -> None:
    given_case = fixed(mesh)._replace(config=config)
    with pytest.raises(ValueError, match=f"^{message}"):
        ranks.run(programs.train, **given_case.arguments)


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


@pytest.mark.deliberate_break
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
    assert_as_one_device(got, given_case, one_device(given_case))
    with pytest.raises(AssertionError, match=f"^rank 0, {wrong}"):
        assert_split(got, given_case)
