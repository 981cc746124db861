"""A Llama-shaped model trains on a mesh of ranks as it does on one device: losses, gradients, parameters after.

So does the norm of all gradients, to which the last step clips them.
And each rank's group on each axis of the mesh is the one that the mesh's formula gives, and its part of each parameter
as large as the mesh says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor, Shard

from pytest_gpuperf import Context, Ranks
from suites.hybrid.programs import training as programs
from suites.hybrid.programs.training import Mesh, Trained
from suites.hybrid.reference import (
    Case,
    assert_as_one_device,
    assert_groups,
    assert_split,
    case,
    fixed,
    one_device,
    share_of,
)
from suites.shared.comparison import assert_close, assert_squares_in_float32
from suites.shared.llama import Config, Llama, LlamaAttention
from suites.shared.strategies import seeds

pytestmark = pytest.mark.ranks(4)

TENSOR_PIPELINE: Mesh = {"pp": 2, "tp": 2}
SHARDED: list[Mesh] = [{"shard": 2, "pp": 2}, {"shard": 2, "tp": 2}, {"replicate": 2, "shard": 2}]
IN_CONTEXT: list[Mesh] = [{"cp": 4}, {"shard": 2, "cp": 2}, {"pp": 2, "cp": 2}, {"cp": 2, "tp": 2}]
OF_FOUR = [TENSOR_PIPELINE, *SHARDED, *IN_CONTEXT]
OF_EIGHT: list[Mesh] = [
    {"shard": 2, "pp": 2, "tp": 2},
    {"replicate": 2, "shard": 2, "tp": 2},
    {"replicate": 2, "shard": 2, "pp": 2},
]


def named(mesh: Mesh) -> str:
    return " ".join(f"{axis}{degree}" for axis, degree in mesh.items())


def assert_trains_as_one_device(ranks: Ranks, given_case: Case, count: bool = False) -> list[Trained]:
    got = ranks.run(programs.train, **given_case.arguments, count=count)
    assert_as_one_device(got, given_case, one_device(given_case))
    assert_split(got, given_case)
    return got


@pytest.mark.parametrize("mesh", [TENSOR_PIPELINE, *IN_CONTEXT], ids=named)
def test_training(ranks: Ranks, mesh: Mesh) -> None:
    assert_trains_as_one_device(ranks, fixed(mesh))


@pytest.mark.parametrize("mesh", SHARDED, ids=named)
def test_training_reduces_gradients_once_a_step(ranks: Ranks, mesh: Mesh) -> None:
    """Gradients of each layer, and of what is outside the layers, are reduced once, not once for each microbatch."""
    for rank, trained in enumerate(assert_trains_as_one_device(ranks, fixed(mesh), count=True)):
        parts = {name.split(".")[1] if name.startswith("layers.") else "" for name in trained.parameters}
        assert trained.reduced == len(parts), f"rank {rank}: {trained.reduced} reductions of {len(parts)} parts"


@pytest.mark.long
@pytest.mark.examples(0.2)  # each builds a model and its process groups on every rank
@given(
    data=st.data(),
    mesh=st.sampled_from(OF_FOUR),
    microbatches=st.integers(2, 3),
    microbatch=st.integers(1, 2),
    seed=seeds,
)
def test_training_of_drawn_models(
    ranks: Ranks, data: st.DataObject, mesh: Mesh, microbatches: int, microbatch: int, seed: int
) -> None:
    drawn = case(
        mesh,
        # DTensor plans each operation anew for each shape it meets: few shapes.
        config=Config(layers=data.draw(st.integers(2, 3)), kv_heads=data.draw(st.sampled_from([2, 4]))),
        length=8 if "cp" in mesh else 5,
        microbatch=microbatch,
        microbatches=microbatches,
        seed=seed,
        schedule=data.draw(st.sampled_from(sorted(programs.SCHEDULES))),
    )
    assert_trains_as_one_device(ranks, drawn)


class Order:
    """What a stage does with its microbatches: forwards and backwards in their order."""

    def __init__(self) -> None:
        self.done = ""

    def noting(self, letter: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.done += letter
            return real(*args, **kwargs)

        return call


def order_of(ctx: Context, schedule: str) -> str:
    """What the first stage of two does with four microbatches."""
    order = Order()
    forward, backward = PipelineStage.forward_one_chunk, PipelineStage.backward_one_chunk
    with (
        mock.patch.object(PipelineStage, "forward_one_chunk", order.noting("F", forward)),
        mock.patch.object(PipelineStage, "backward_one_chunk", order.noting("B", backward)),
    ):
        drawn = case(
            {"pp": 2},
            config=Config(),
            length=5,
            microbatch=1,
            microbatches=4,
            seed=1,
            schedule=schedule,
        )
        programs.train(ctx, **drawn.arguments)
    return order.done


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("schedule", "order"), [("GPipe", "FFFFBBBB"), ("1F1B", "FFBFBFBB")])
def test_a_schedule_is_what_it_is_called(ranks: Ranks, schedule: str, order: str) -> None:
    """The numbers of all schedules are alike; how many microbatches are kept is not."""
    of_first = ranks.run(order_of, schedule)[0]
    assert of_first
    assert of_first == order * (len(of_first) // len(order))


@pytest.mark.long
@pytest.mark.ranks(8)
def test_training_on_three_axes(ranks: Ranks) -> None:
    assert_trains_as_one_device(ranks, fixed(OF_EIGHT[0]))


@pytest.mark.ranks(8)
@pytest.mark.parametrize("mesh", [{"replicate": 2, "shard": 4}, {"shard": 4, "cp": 2}], ids=named)
def test_axes_of_different_degrees(ranks: Ranks, mesh: Mesh) -> None:
    """Axes of equal degrees would hide which of them a group or a share was made of."""
    batch = torch.arange(8 * 8).view(8, 8)

    def program(ctx: Context) -> tuple[dict[str, list[int]], torch.Tensor]:
        untrained: Any = None
        rank = programs.Training(programs.device_mesh(ctx, mesh), untrained, untrained, untrained)
        return programs.groups(rank.mesh), rank.part(batch)

    got = ranks.run(program)
    assert_groups([groups for groups, _ in got], mesh)
    for rank, (_, mine) in enumerate(got):
        assert_close(mine, share_of(rank, mesh, batch[None])[0], f"rank {rank}, its share")


@pytest.mark.ranks(8, device="cuda")  # eight processes on a laptop's cores take long
@pytest.mark.parametrize("mesh", OF_EIGHT[1:], ids=named)
def test_training_on_other_three_axes(ranks: Ranks, mesh: Mesh) -> None:
    assert_trains_as_one_device(ranks, fixed(mesh))


class Softmax(LlamaAttention):
    """Somebody's own attention, which does step by step what ours leaves to one operation."""

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        groups = query.unflatten(1, (key.shape[1], -1))
        scores = torch.einsum("bghqd,bgkd->bghqk", groups, key) / math.sqrt(self.head_dim)
        future = torch.ones_like(scores, dtype=torch.bool).triu(1 + key.shape[2] - query.shape[2])
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        return torch.einsum("bghqk,bgkd->bghqd", weights, value).flatten(1, 2)


@pytest.mark.parametrize("mesh", [TENSOR_PIPELINE, {"shard": 2, "cp": 2}], ids=named)
def test_attention_of_your_own(ranks: Ranks, mesh: Mesh) -> None:
    given_case = fixed(mesh)
    got = ranks.run(programs.train, **given_case.arguments, attention=Softmax)
    assert_as_one_device(got, given_case, one_device(given_case))


def test_a_plan_of_your_own(ranks: Ranks) -> None:
    """In place of ours: here tensor parallelism splits attention, and leaves feed-forward layers whole."""

    def your_split(model: Llama, mesh: DeviceMesh) -> None:
        attention = {name: style for name, style in programs.tensor_plan().items() if name.startswith("attention.")}
        programs.split_model(model, mesh, attention)

    given_case = fixed({"shard": 2, "tp": 2})
    got = ranks.run(programs.train, **given_case.arguments, split=your_split)
    assert_as_one_device(got, given_case, one_device(given_case))
    config = given_case.config
    for trained in got:
        assert trained.shapes["layers.1.attention.query.weight"] == (config.dim // 2 // 2, config.dim)
        assert trained.shapes["layers.1.feed_forward.up.weight"] == (config.hidden // 2, config.dim)


def clipped_norm(ctx: Context, axis: str, gradients: list[torch.Tensor]) -> torch.Tensor:
    """The norm that clipping returns if each rank has these gradients: of its stage, or as shards."""
    mesh, model = ctx.mesh((ctx.world_size,), (axis,)), nn.ParameterList()
    for gradient in gradients:
        own = gradient.to(ctx.device)
        held = DTensor.from_local(own, mesh, [Shard(0)]) if axis == "shard" else own
        model.append(nn.Parameter(torch.zeros_like(held)))
        model[-1].grad = held
    rank: Any = SimpleNamespace(mesh=mesh, model=model)
    return programs.clip(rank, 1.0).cpu()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("axis", ["pp", "shard"])
def test_clipping_takes_the_norm_of_16_bit_gradients_in_float32(ranks: Ranks, axis: str) -> None:
    assert_squares_in_float32(lambda gradients: ranks.run(clipped_norm, axis, gradients)[1].square(), share=2.0)


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
        ({"replicate": 1, "cp": 2}, Config(), "no mesh has both cp and replicate"),
    ],
    ids=["heads", "hidden features", "vocabulary", "layers", "replicas of parts"],
)
def test_a_model_that_does_not_fit_the_mesh(ranks: Ranks, mesh: Mesh, config: Config, message: str) -> None:
    given_case = fixed(mesh)._replace(config=config)
    with pytest.raises(ValueError, match=f"^{message}"):
        ranks.run(programs.train, **given_case.arguments)


@pytest.mark.ranks(2)
def test_a_sequence_that_does_not_divide(ranks: Ranks) -> None:
    given_case = case({"cp": 2}, config=Config(), length=6, microbatch=1, microbatches=1, seed=1)
    with pytest.raises(ValueError, match=r"^6 tokens make no 4 equal pieces for cp 2\n"):
        ranks.run(programs.train, **given_case.arguments)
