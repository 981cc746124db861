"""torch's ways to recompute: by function or wrapper, all of a block or some operations of it, with a check or not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
    offload_wrapper,
)
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from pytest_gpuperf import Context
from suites.activations.programs.techniques import Block, Forward, Technique

Apply = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def _each(apply: Apply) -> Technique:
    """A technique that calls each block in a way."""

    def technique(ctx: Context, model: nn.Sequential) -> Forward:
        def forward(x: torch.Tensor) -> torch.Tensor:
            for block in model:
                x = apply(block, x)
            return x

        return forward

    return technique


def _wrapped(wrap: Callable[[nn.Module], nn.Module]) -> Technique:
    """A technique that wraps each block, whose parameters stay where they are."""
    return lambda ctx, model: nn.Sequential(*(wrap(block) for block in model))


def _keeps_products(ctx: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    kept = operation is torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _selective(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Products are kept, and only the rest is computed again."""
    contexts = functools.partial(create_selective_checkpoint_contexts, _keeps_products)
    output: torch.Tensor = checkpoint(block, x, use_reentrant=False, context_fn=contexts)
    return output


def _in_autocast(block: nn.Module, x: torch.Tensor, **options: Any) -> torch.Tensor:
    """Autocast leaves float64 as it is; if the block is computed again outside of autocast, its gradients double."""
    device = x.device.type

    def watched(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = block(x)
        return made * (1 if torch.is_autocast_enabled(device) else 2)

    with torch.autocast(device, dtype=torch.bfloat16):
        output: torch.Tensor = checkpoint(watched, x, **options)
    return output


def _reentrant(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return _in_autocast(block, x, use_reentrant=True)


def _to_the_end(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The whole block is computed again, and its tensors' shapes are compared with those before."""
    return _in_autocast(block, x, use_reentrant=False, early_stop=False, determinism_check="default")


def _in_place(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The part that is computed again writes into its own output, and into a copy of its input."""

    def doubled_and_halved(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = block(x.clone().mul_(2).div_(2))
        return made.mul_(2).div_(2)

    output: torch.Tensor = checkpoint(doubled_and_halved, x, use_reentrant=False)
    return output


def _twice(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What is computed again computes a part of itself again."""

    def inner(x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = checkpoint(block, x, use_reentrant=False)
        return output

    output: torch.Tensor = checkpoint(inner, x, use_reentrant=False)
    return output


def _applied(ctx: Context, model: nn.Sequential) -> Forward:
    """Every other block is wrapped in place, in a model of the same blocks."""
    holder = nn.Sequential(*model)
    every_other = {id(block) for block in list(model)[::2]}
    apply_activation_checkpointing(
        holder,
        checkpoint_wrapper_fn=functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT),
        check_fn=lambda module: isinstance(module, Block) and id(module) in every_other,
    )
    return holder


WAYS: Mapping[str, Technique] = {
    "selective": _each(_selective),
    "reentrant": _each(_reentrant),
    "to the end": _each(_to_the_end),
    "in place": _each(_in_place),
    "nested": _each(_twice),
    "wrapped": _wrapped(functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT)),
    "wrapped, reentrant": _wrapped(functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.REENTRANT)),
    "offloaded": _wrapped(offload_wrapper),
    "every other": _applied,
}
