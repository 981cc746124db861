"""Training on a mesh with any combination of features, each of which leaves the numbers as they are.

The features are recomputation, compiled layers, gathered parameters, accumulation, clipping, padding and sequences of
unlike length.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pytest_gpuperf import Context
from suites.hybrid.programs.training import Mesh, clip, split_model, training
from suites.shared.course import IGNORED
from suites.shared.llama import Config, Llama
from suites.shared.step import Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a training does besides; by default nothing."""

    recompute: bool = False
    """Whether each layer's activations are computed again in backward."""
    compiled: bool = False
    """Whether each layer's forward is traced."""
    gathered: bool = False
    """Whether parameters stay gathered from forward to backward (ZeRO-2)."""
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


def split(model: Llama, mesh: DeviceMesh, *, features: Features) -> None:
    """Splits a stage, whose layers recompute and are traced first."""
    for layer in model.layers.values():
        if features.recompute:
            layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)
        if features.compiled:
            layer.compile(backend="aot_eager")
    split_model(model, mesh, reshard=not features.gathered)


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
        mesh: axes and degrees.
        config: the model's sizes.
        batches: tokens and targets of each step, for all ranks; ``IGNORED`` is no target.
        max_norms: for each step the norm that all gradients together are clipped to.
        features: what else the training does.
        microbatches: of a pipeline.
        schedule: of a pipeline.
        seed: of the weights.
        dtype: of the weights.
    """
    loss = ValidLoss()
    rank = training(
        ctx,
        mesh=mesh,
        config=config,
        dtype=dtype,
        seed=seed,
        microbatches=microbatches,
        schedule=schedule,
        split=functools.partial(split, features=features),
        loss=loss,
    )
    shares = mesh.get("replicate", 1) * mesh.get("shard", 1) * mesh.get("cp", 1)
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
            with _waiting(rank.model, features.lazy and number + 1 < len(pieces)):
                rank.step(some, wanted)
        norms.append(clip(rank, max_norm).item())
        first = first or {
            name: _gathered(value.grad) for name, value in rank.model.named_parameters() if value.grad is not None
        }
        rank.optimizer.step()
    return norms, first, {name: _gathered(value) for name, value in rank.model.named_parameters()}


@contextlib.contextmanager
def _waiting(model: Llama, waits: bool):  # type: ignore[no-untyped-def]  # a generator of nothing
    """Within it gradients stay on the rank, if they wait for later ones."""
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)] if waits else []
    for module in sharded:
        module.set_requires_gradient_sync(False, recurse=False)
    yield
    for module in sharded:
        module.set_requires_gradient_sync(True, recurse=False)


def _gathered(tensor: torch.Tensor) -> torch.Tensor:
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.detach().clone()
