"""Training steps of a Llama-shaped model on a mesh of ranks: pipeline stages, tensors and batches split at once.

A mesh is a dictionary of axis and degree, outermost first. The axes that programs know:
``replicate`` and ``shard``, over which the batch is split: fully sharded data parallelism over ``shard``, and
copies of it (hybrid sharding) over ``replicate``; ``cp``, over which sequences are split, and parameters are sharded as
over ``shard``; ``ep``, over which the batch is split too, and parameters are sharded as over ``shard``, all but the
experts of layers that have some; ``pp``, pipeline stages; ``tp``, tensors of each layer.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from pytest_gpuperf import Context
from suites.hybrid.programs.clipping import local, parts_of, squared
from suites.hybrid.programs.sequences import SplitSequence
from suites.shared.llama import Config, Llama, LlamaAttention, load_initial_weights, loss_of
from suites.shared.step import Tensors
from suites.shared.traffic import Traffic

AXES = ("replicate", "shard", "cp", "ep", "pp", "tp")
BATCH_AXES = ("replicate", "shard", "ep")
SCHEDULES: dict[str, Any] = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}

# Momentum, so that a second step tells whether the optimizer's state is right; unlike Adam's it is a linear
# function of the gradients, and small differences stay small.
LEARNING_RATE, MOMENTUM = 0.125, 0.75

Mesh = dict[str, int]
Plan = dict[str, ParallelStyle]
Split = Callable[[Llama, DeviceMesh], nn.Module | None]
"""Splits a stage in place; it may return a module that holds the stage."""
LossOf = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def device_mesh(ctx: Context, mesh: Mesh) -> DeviceMesh:
    """The mesh of all ranks.

    Raises:
        ValueError: it has another number of ranks than the world, or an axis that programs do not know.
    """
    size = math.prod(mesh.values())
    if size != ctx.world_size:
        degrees = " x ".join(f"{axis} {degree}" for axis, degree in mesh.items())
        raise ValueError(f"the mesh {degrees} has {size} ranks, the world has {ctx.world_size}")
    if unknown := [axis for axis in mesh if axis not in AXES]:
        raise ValueError(f"mesh axes {unknown} are none of {AXES}")
    return ctx.mesh(tuple(mesh.values()), tuple(mesh))


def tensor_plan() -> Plan:
    """How each layer is split over ``tp``: by heads and by hidden features, with one all-reduce for each half.

    The same for every layer: it is applied to one at a time.
    """
    return {
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.output": RowwiseParallel(),
        "feed_forward.gate": ColwiseParallel(),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(),
    }


def split_model(model: Llama, mesh: DeviceMesh, plan: Plan | None = None, *, reshard: bool = True) -> None:
    """Splits the model's tensors over ``tp``, and what each rank then has over the axes of the batch.

    Args:
        model: a stage.
        mesh: of all ranks.
        plan: of each layer's tensors, ``tensor_plan`` by default.
        reshard: whether backward gathers parameters again (ZeRO-3), or they stay gathered from the forward (ZeRO-2).
    """
    names = mesh.mesh_dim_names or ()
    if "tp" in names:
        tensors = mesh["tp"]
        for layer in model.layers.values():
            parallelize_module(layer, tensors, plan or tensor_plan())
        if model.embedding is not None:
            parallelize_module(model.embedding, tensors, RowwiseParallel(input_layouts=Replicate()))
        if model.head is not None:
            parallelize_module(model.head, tensors, ColwiseParallel(output_layouts=Replicate()))
    batch_axes = tuple(axis for axis in BATCH_AXES if axis in names)
    if batch_axes or "cp" in names:
        # One axis shards; of two the first replicates, which is hybrid sharding. With cp or ep both shard, as one.
        sharding = tuple(axis for axis in ("shard", "cp", "ep") if axis in names)
        together = mesh[sharding]._flatten() if len(sharding) > 1 else mesh[batch_axes or "cp"]
        for layer in model.layers.values():
            fully_shard(layer, mesh=together, reshard_after_forward=reshard)
        fully_shard(model, mesh=together, reshard_after_forward=reshard)


class Training(NamedTuple):
    """One rank's part of a training."""

    mesh: DeviceMesh
    model: Llama
    optimizer: torch.optim.Optimizer
    step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor | None]
    held: nn.Module | None = None
    """The module that holds the model, if there is one."""

    @property
    def sequences(self) -> SplitSequence | None:
        """How its sequences are split; None if they are whole."""
        return SplitSequence.over(self.mesh.get_group("cp")) if "cp" in (self.mesh.mesh_dim_names or ()) else None

    def part(self, batch: torch.Tensor) -> torch.Tensor:
        """The rank's share of tokens or targets of all ranks, sequences x places."""
        degrees = [self.mesh[axis].size() if axis in (self.mesh.mesh_dim_names or ()) else 1 for axis in BATCH_AXES]
        share = self.place("replicate") * degrees[1] + self.place("shard")
        mine = batch.chunk(math.prod(degrees))[share * degrees[2] + self.place("ep")]
        return mine if self.sequences is None else self.sequences.part(mine, 1)

    def place(self, axis: str) -> int:
        """The rank's place on the axis; 0 where there is no such axis."""
        return self.mesh.get_local_rank(axis) if axis in (self.mesh.mesh_dim_names or ()) else 0


def sgd(model: Llama) -> torch.optim.Optimizer:
    """The optimizer whose results are compared."""
    # One parameter at a time: torch's multi-tensor kernels take no tensors of different meshes in one call, and
    # the norms are not on the axis tp.
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, foreach=False)


def training(
    ctx: Context,
    *,
    mesh: Mesh,
    config: Config,
    dtype: torch.dtype,
    seed: int,
    microbatches: int = 1,
    schedule: str = "1F1B",
    split: Split = split_model,
    attention: type[LlamaAttention] = LlamaAttention,
    draw: Callable[[Llama, Config, int], None] = load_initial_weights,
    optimize: Callable[[Llama], torch.optim.Optimizer] = sgd,
    loss: LossOf = loss_of,
) -> Training:
    """Prepares a rank's part; its ``step`` adds a batch's gradients, and returns the loss on ranks of the last stage.

    Args:
        ctx: the rank's context.
        mesh: axes and degrees.
        config: the model's sizes.
        dtype: of the weights.
        seed: of the weights.
        microbatches: how many a pipeline cuts a rank's share of the batch into.
        schedule: of the pipeline, a key of ``SCHEDULES``.
        split: splits a stage over the other axes.
        attention: the layers' attention.
        draw: fills a stage of a model of these sizes with weights that depend on the seed alone.
        optimize: makes the optimizer of a stage that is split already.
        loss: of logits and targets; its mean over microbatches and over the ranks of the batch is the loss of all.

    Raises:
        ValueError: the mesh does not fit the world, or its ``tp`` or ``pp`` the model.
    """
    ranks = device_mesh(ctx, mesh)
    tensors, stages = mesh.get("tp", 1), mesh.get("pp", 1)
    if config.kv_heads % tensors or config.hidden % tensors or config.vocabulary % tensors:
        raise ValueError(f"tp {tensors} divides not all of {config}")
    if stages > config.layers:
        raise ValueError(f"{config.layers} layers make no {stages} stages")
    if "cp" in mesh and "replicate" in mesh:
        raise ValueError("no mesh has both cp and replicate: shard over cp, or replicate without it")
    stage = ranks.get_local_rank("pp") if stages > 1 else 0
    with ctx.device:
        model = Llama(config, stage, stages, attention).to(dtype)
    if "cp" in mesh:
        for attending in model.modules():
            if isinstance(attending, LlamaAttention):
                attending.sequences = SplitSequence.over(ranks.get_group("cp"))
    draw(model, config, seed)
    held = split(model, ranks)
    optimizer = optimize(model)
    called = held or model

    if stages == 1:

        def whole(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor | None:
            found = loss(called(x), target)
            found.backward()
            return found.detach()

        return Training(ranks, model, optimizer, whole, held)

    piped = PipelineStage(called, stage, stages, ctx.device, group=ranks.get_group("pp"))
    runner = SCHEDULES[schedule](piped, microbatches, loss_fn=loss, scale_grads=True)

    def staged(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor | None:
        losses: list[torch.Tensor] = []
        if piped.is_last:
            runner.step(*[x] * piped.is_first, target=target, losses=losses)
            return torch.stack(losses).mean().detach()
        runner.step(*[x] * piped.is_first)
        return None

    return Training(ranks, model, optimizer, staged, held)


class Trained(NamedTuple):
    """What a rank has after training."""

    groups: dict[str, list[int]]
    shapes: dict[str, tuple[int, ...]]
    losses: list[float]
    norms: list[float]
    """The norm of all gradients together, in each step, before they were clipped."""
    gradients: Tensors
    parameters: Tensors
    reduced: int
    """How many times the last step has scattered a sum of gradients, if that was counted."""


def train(
    ctx: Context,
    *,
    mesh: Mesh,
    batches: list[tuple[torch.Tensor, torch.Tensor]],
    max_norms: Sequence[float],
    count: bool = False,
    **kwargs: Any,
) -> Trained:
    """Trains on each batch, a rank on its share of it.

    It returns the ranks of each of the rank's groups, the shape of what the rank holds of each parameter, its losses,
    the norms, and, gathered from all ranks of the stage, the gradients of the first step and the parameters after the
    last.

    Args:
        ctx: the rank's context.
        mesh: axes and degrees.
        batches: tokens and targets of each step, for all ranks.
        max_norms: for each step the norm that all gradients of all stages together are clipped to.
        count: whether the last step's reductions are counted, which slows it down.
        kwargs: for ``training``.
    """
    rank = training(ctx, mesh=mesh, **kwargs)
    losses: list[float] = []
    norms: list[float] = []
    gradients: Tensors = {}
    traffic = Traffic()
    for number, (batch, max_norm) in enumerate(zip(batches, max_norms, strict=True), start=1):
        x, target = (rank.part(tensor).to(ctx.device) for tensor in batch)
        rank.optimizer.zero_grad()
        with traffic if count and number == len(batches) else contextlib.nullcontext():
            loss = rank.step(x, target)
        norms.append(clip(rank, max_norm).item())
        if loss is not None:
            losses.append(loss.item())
        gradients = gradients or {name: _whole(value.grad) for name, value in rank.model.named_parameters()}
        rank.optimizer.step()
    parameters = {name: _whole(value) for name, value in rank.model.named_parameters()}
    shapes = {name: tuple(local(value).shape) for name, value in rank.model.named_parameters()}
    reduced = sum(call.name == "reduce_scatter" for call in traffic.calls)
    return Trained(groups(rank.mesh), shapes, losses, norms, gradients, parameters, reduced)


def clip(rank: Training, max_norm: float) -> torch.Tensor:
    """Scales all gradients, of all stages, if their norm together is larger (Pascanu et al., arXiv:1211.5063).

    It returns the norm that they had, in float32 at least.
    """
    gradients = [value.grad for value in rank.model.parameters() if value.grad is not None]
    stages = rank.mesh["pp"].size() if "pp" in (rank.mesh.mesh_dim_names or ()) else 1
    squares = squared(gradients, parts_of(gradients), rank.mesh.size() // stages)
    dist.all_reduce(squares)
    norm = squares.sqrt()
    factor = (max_norm / norm).clamp(max=1.0)
    for gradient in gradients:
        local(gradient).mul_(factor)
    return norm


def _whole(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None  # every parameter is trained
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def groups(mesh: DeviceMesh) -> dict[str, list[int]]:
    """The ranks of this rank's group on each axis."""
    return {axis: dist.get_process_group_ranks(mesh.get_group(axis)) for axis in mesh.mesh_dim_names or ()}


def groups_of(ctx: Context, *, mesh: Mesh) -> dict[str, list[int]]:
    """The ranks of this rank's group on each axis of a new mesh."""
    return groups(device_mesh(ctx, mesh))
