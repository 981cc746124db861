"""Training on a mesh with any combination of features, each of which leaves the numbers as they are.

The features are recomputation, compiled layers, the stage of ZeRO, accumulation, clipping, padding and sequences of
unlike length.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from pytest_gpuperf import Context
from suites.hybrid.programs.mixture import place_experts, shard_experts
from suites.hybrid.programs.training import (
    BATCH_AXES,
    LEARNING_RATE,
    MOMENTUM,
    Mesh,
    clip,
    sgd,
    split_model,
    training,
)
from suites.shared.course import IGNORED
from suites.shared.llama import Config, Llama
from suites.shared.step import Tensors
from suites.shared.training import zero_redundancy


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a training does besides; by default nothing."""

    recompute: bool = False
    """Whether each layer's activations are computed again in backward."""
    compiled: bool = False
    """Whether each layer's forward is traced."""
    zero: int = 3
    """The stage of ZeRO: 1 shards the optimizer's state, 2 the gradients too, 3 the parameters too, and 0 nothing.

    Of 1 and 0 ranks reduce by DistributedDataParallel. It takes no tensors that are split over ``tp`` or ``ep``, and
    torch 2.13 fails if a stage of a pipeline is one: it runs a stage once to see shapes, and DDP counts its parameters
    twice.
    """
    accumulate: bool = False
    """Whether a rank's sequences go one after the other; of a pipeline, they do anyway."""
    lazy: bool = False
    """Whether gradients are reduced only with the last of these sequences."""


class ValidLoss:
    """The mean over all valid tokens of all ranks, as a sum over a rank's and a factor."""

    def __init__(self) -> None:
        self.factor = 1.0

    def __call__(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        total = functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORED, reduction="sum")
        return total * self.factor


@dataclass(slots=True)
class _Sharing:
    """What ranks share of a stage: its parameters and gradients, or its optimizer's state, or nothing."""

    features: Features
    config: Config
    seed: int
    group: dist.ProcessGroup | None = None
    """The ranks with the same parameters, if each of them has all."""

    def split(self, model: Llama, mesh: DeviceMesh) -> nn.Module | None:
        """Splits a stage, whose layers get their experts, recompute and are traced first."""
        if "ep" in (mesh.mesh_dim_names or ()):
            place_experts(model, mesh, self.config, self.seed)
        for layer in model.layers.values():
            if self.features.recompute:
                layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)
            if self.features.compiled:
                layer.compile(backend="aot_eager")
        if self.features.zero > 1:
            shard_experts(model, mesh, reshard=self.features.zero == 3)
            split_model(model, mesh, reshard=self.features.zero == 3)
            return None
        axes = tuple(axis for axis in (*BATCH_AXES, "cp") if axis in (mesh.mesh_dim_names or ()))
        self.group = (mesh[axes]._flatten() if len(axes) > 1 else mesh[axes[0]]).get_group()
        return DistributedDataParallel(model, process_group=self.group)

    def optimizer(self, model: Llama) -> torch.optim.Optimizer:
        """The optimizer of a stage that is split."""
        if self.features.zero != 1:
            return sgd(model)
        return zero_redundancy()(
            model.parameters(), torch.optim.SGD, process_group=self.group, lr=LEARNING_RATE, momentum=MOMENTUM
        )


def replicates(mesh: Mesh) -> bool:
    """Whether stages 0 and 1 of ZeRO are possible on a mesh."""
    return not {"tp", "pp", "ep"} & {*mesh} and any(axis in mesh for axis in (*BATCH_AXES, "cp"))


def combined(
    ctx: Context,
    *,
    mesh: Mesh,
    config: Config,
    batches: Sequence[tuple[torch.Tensor, torch.Tensor]],
    max_norms: Sequence[float],
    features: Features,
    microbatches: int,
    schedule: str,
    seed: int,
    dtype: torch.dtype,
) -> tuple[list[float], Tensors, Tensors]:
    """The norms of all gradients in each step, the gradients of the first, and the parameters after the last.

    Args:
        ctx: the rank's context.
        mesh: axes and degrees; with ``ep`` each layer has experts in place of its feed-forward.
        config: the model's sizes.
        batches: tokens and targets of each step, for all ranks; ``IGNORED`` is no target.
        max_norms: for each step the norm that all gradients together are clipped to.
        features: what else the training does.
        microbatches: of a pipeline.
        schedule: of a pipeline.
        seed: of the weights.
        dtype: of the weights.
    """
    loss, sharing = ValidLoss(), _Sharing(features, config, seed)
    rank = training(
        ctx,
        mesh=mesh,
        config=config,
        dtype=dtype,
        seed=seed,
        microbatches=microbatches,
        schedule=schedule,
        split=sharing.split,
        optimize=sharing.optimizer,
        loss=loss,
    )
    shares = math.prod(mesh.get(axis, 1) for axis in (*BATCH_AXES, "cp"))
    norms: list[float] = []
    first: Tensors = {}
    for (tokens, target), max_norm in zip(batches, max_norms, strict=True):
        # FSDP takes the mean over its ranks, and a pipeline that over its microbatches.
        loss.factor = shares * (microbatches if "pp" in mesh else 1) / int((target != IGNORED).sum())
        rank.optimizer.zero_grad()
        x, y = (rank.part(part).to(ctx.device) for part in (tokens, target))
        parts = len(x) if features.accumulate and "pp" not in mesh else 1
        pieces = list(zip(x.chunk(parts), y.chunk(parts), strict=True))
        for number, (some, wanted) in enumerate(pieces):
            with _waiting(rank.held or rank.model, features.lazy and number + 1 < len(pieces)):
                rank.step(some, wanted)
        norms.append(clip(rank, max_norm).item())
        first = first or {
            name: _gathered(value.grad) for name, value in rank.model.named_parameters() if value.grad is not None
        }
        rank.optimizer.step()
    return norms, first, {name: _gathered(value) for name, value in rank.model.named_parameters()}


@contextlib.contextmanager
def _waiting(model: nn.Module, waits: bool):  # type: ignore[no-untyped-def]  # a generator of nothing
    """Within it gradients stay on the rank, if they wait for later ones."""
    if isinstance(model, DistributedDataParallel):
        with model.no_sync() if waits else contextlib.nullcontext():
            yield
        return
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)] if waits else []
    for module in sharded:
        module.set_requires_gradient_sync(False, recurse=False)
    yield
    for module in sharded:
        module.set_requires_gradient_sync(True, recurse=False)


def _gathered(tensor: torch.Tensor) -> torch.Tensor:
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.detach().clone()
