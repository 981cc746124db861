"""The loss of logits that lie split over R ranks by vocabulary.

N tokens, S of a sequence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional

from pytest_gpuperf import Context
from suites.shared.sharding import local_gradient, local_tensor
from suites.shared.step import Step, Tensors, gradient_of
from suites.tensor_parallel.programs.vocabulary import Reduction


def loss_of_logits(
    ctx: Context,
    *,
    logits: torch.Tensor,
    target: torch.Tensor,
    reduction: Reduction,
    ignore_index: int = -100,
    weight: torch.Tensor | None = None,
    placed: bool = False,
) -> Step[Tensors]:
    """Cross-entropy of logits that lie split; the step returns it, and the gradient of each rank's logits.

    Args:
        ctx: the rank's context.
        logits: all of them, [N, V] or [N, V, S], or [V] of a single token.
        target: a class for each, [N] or [N, S], or the single token's.
        reduction: of the loss.
        ignore_index: targets that don't count.
        weight: of each class, [V].
        placed: whether targets and weights are given as DTensors.
    """
    mesh = ctx.mesh((ctx.world_size,))
    classes = Shard(1 if logits.dim() > 1 else 0)
    leaf = distribute_tensor(logits.to(ctx.device), mesh, [classes], src_data_rank=None).requires_grad_()
    target = target.to(ctx.device)
    weight = None if weight is None else weight.to(ctx.device)
    if placed:
        target = distribute_tensor(target, mesh, [Replicate()], src_data_rank=None)
        weight = None if weight is None else distribute_tensor(weight, mesh, [Replicate()], src_data_rank=None)

    def step() -> Tensors:
        leaf.grad = None
        with loss_parallel():
            losses = functional.cross_entropy(
                leaf, target, weight=weight, reduction=reduction, ignore_index=ignore_index
            )
            losses.sum().backward()
        return {"loss": local_tensor(losses), "logits gradient": local_gradient(leaf)}

    return step


def losses_on_two_axes(
    ctx: Context,
    *,
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    placements: Sequence[Placement],
) -> dict[str, Tensors]:
    """The whole loss of logits that both axes of a mesh split, and their whole gradient, by reduction.

    Args:
        ctx: the rank's context.
        logits: all of them, [N, V] or [N, V, S].
        target: a class for each, [N] or [N, S].
        weight: of each class, [V].
        ignore_index: targets that don't count.
        placements: what each axis does to the logits; one of them splits the classes.
    """
    mesh = ctx.mesh((2, ctx.world_size // 2))
    # Targets have no classes, so that a sequence, which comes after these, is their second dimension.
    along: list[Placement] = [
        Shard(max(place.dim - 1, 0)) if isinstance(place, Shard) and place.dim != 1 else Replicate()
        for place in placements
    ]
    target = distribute_tensor(target.to(ctx.device), mesh, along, src_data_rank=None)
    weight = None if weight is None else weight.to(ctx.device)
    told: dict[str, Tensors] = {}
    reductions: tuple[Reduction, ...] = ("sum", "none")  # torch refuses a mean on such a mesh
    for reduction in reductions:
        leaf = distribute_tensor(logits.to(ctx.device), mesh, placements, src_data_rank=None).requires_grad_()
        with loss_parallel():
            losses = functional.cross_entropy(
                leaf, target, weight=weight, reduction=reduction, ignore_index=ignore_index
            )
            losses.sum().backward()
        gradient = gradient_of(leaf)
        assert isinstance(losses, DTensor)
        assert isinstance(gradient, DTensor)
        whole = {"loss": losses.full_tensor(), "logits gradient": gradient.full_tensor()}
        told[reduction] = {name: value.detach() for name, value in whole.items()}
    return told
