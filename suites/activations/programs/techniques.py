"""A training step whose activations are kept, recomputed, offloaded or sharded over the ranks.

L blocks, B rows of D features, H hidden features: a block is linear D -> H, ReLU, dropout, linear H -> D. Between
forward and backward a block that keeps everything holds its input (B x D), the ReLU's output and, where dropout
is on, the mask and the product of both (each B x H).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from pytest_gpuperf import Context
from suites.shared.step import Step, Tensors, gradient_of

LEARNING_RATE = 1.0  # keeps whole numbers whole

Weights = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""The two weights of each block, H x D and D x H."""
Forward = Callable[[torch.Tensor], torch.Tensor]
Technique = Callable[[Context, nn.Sequential], Forward]


class Block(nn.Module):
    """Linear, ReLU, dropout of half the hidden features, linear. It notes down the masks that it draws.

    A dropout of its own: masks of zeros and ones, without nn.Dropout's factor of 2, keep whole numbers small.
    """

    def __init__(self, first: torch.Tensor, second: torch.Tensor, *, dropout: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(first), nn.Parameter(second)
        self.dropout = dropout
        self.masks: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output; x is B x D."""
        hidden = nn.functional.linear(x, self.first).relu()
        if self.dropout:
            mask = torch.bernoulli(torch.full_like(hidden, 0.5))
            self.masks.append(mask)
            hidden = hidden * mask
        return nn.functional.linear(hidden, self.second)


def network(ctx: Context, weights: Weights, *, dropout: bool) -> nn.Sequential:
    """The blocks on the rank's device."""
    return nn.Sequential(*(Block(a.to(ctx.device), b.to(ctx.device), dropout=dropout) for a, b in weights))


def blocks(model: nn.Sequential) -> list[Block]:
    """Its blocks, by their type."""
    return [block for block in model if isinstance(block, Block)]


def keep(ctx: Context, model: nn.Sequential) -> Forward:
    """Everything that backward needs stays where it is."""
    return model


def recompute(ctx: Context, model: nn.Sequential, *, preserve_rng_state: bool = True) -> Forward:
    """Each block keeps its input alone; backward computes the rest again (Chen et al., arXiv 1604.06174)."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        for block in model:
            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=preserve_rng_state)
        return x

    return forward


Moved = Callable[[torch.Tensor, torch.Tensor], None]
"""Called with a saved tensor and its copy in the host's memory."""


def offload(ctx: Context, model: nn.Sequential, *, moved: Moved = lambda tensor, copy: None) -> Forward:
    """Everything waits in the host's memory, pinned where there are GPUs; ``moved`` is shown each of its copies."""

    def hooks() -> saved_tensors_hooks:
        # pin_memory makes a copy on CPUs too; without it a CPU tensor would stay the tensor that it is.
        torchs_own = save_on_cpu(pin_memory=True)

        def pack(tensor: torch.Tensor) -> Any:
            device, copy = torchs_own.pack_hook(tensor)
            moved(tensor, copy)
            return device, copy

        return saved_tensors_hooks(pack, torchs_own.unpack_hook)

    return under(hooks, model)


def shard_activations(ctx: Context, model: nn.Sequential) -> Forward:
    """Each rank keeps 1 / R of everything and gathers the whole when backward asks; inputs are equal on all ranks.

    Rajbhandari et al., ZeRO (arXiv 1910.02054), section 6.1, partitioned activations.
    """
    return under(lambda: saved_tensors_hooks(*sharding(ctx, model)), model)


def under(hooks: Callable[[], AbstractContextManager[Any]], model: Forward) -> Forward:
    """The model, whose saved tensors go through hooks that are made anew for each forward."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        with hooks():
            return model(x)

    return forward


TECHNIQUES: Mapping[str, Technique] = {
    "keep": keep,
    "recompute": recompute,
    "offload": offload,
    "shard": shard_activations,
}

Saved = tuple[torch.Tensor, torch.Size] | torch.Tensor


def sharding(ctx: Context, model: nn.Module) -> tuple[Callable[[torch.Tensor], Saved], Callable[[Saved], torch.Tensor]]:
    """The hooks of ``shard``: a saved tensor is padded with zeros until R divides it."""
    stays = parameter_of(model)

    def pack(tensor: torch.Tensor) -> Saved:
        if stays(tensor):
            return tensor
        flat = tensor.reshape(-1)
        share = -(-flat.numel() // ctx.world_size)
        padded = nn.functional.pad(flat, (0, share * ctx.world_size - flat.numel()))
        # A clone: a view of its own share would keep the whole alive.
        return padded.view(ctx.world_size, share)[ctx.rank].clone(), tensor.shape

    def unpack(saved: Saved) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        mine, shape = saved
        whole = mine.new_empty(ctx.world_size * mine.numel())
        dist.all_gather_into_tensor(whole, mine)
        return whole[: shape.numel()].view(shape)

    return pack, unpack


def parameter_of(model: nn.Module) -> Callable[[torch.Tensor], bool]:
    """Whether a tensor is a parameter or a view of one: those stay alive anyway, and saving room on them is none."""
    storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    return lambda tensor: tensor.untyped_storage().data_ptr() in storages


def train(
    ctx: Context, *, technique: Technique, weights: Weights, x: torch.Tensor, grad: torch.Tensor, dropout: bool
) -> Step[Tensors]:
    """A step of SGD; returns output, gradients, the new parameters, and the masks that the forward drew.

    The parameters are not changed in place, so that each step starts from the same ones.

    Args:
        ctx: the rank's context.
        technique: what becomes of the activations.
        weights: of the blocks.
        x: this rank's input at the first step; at each later one it is 1 more.
        grad: the gradient of this rank's output; at each later step it is 1 less.
        dropout: whether half the hidden features are dropped.
    """
    model = network(ctx, weights, dropout=dropout)
    return blocks_step(model, technique(ctx, model), *on_device(ctx, x, grad))


def on_device(ctx: Context, x: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The input, whose gradient is wanted too, and the output's gradient."""
    return x.to(ctx.device).detach().requires_grad_(), grad.to(ctx.device)


def blocks_step(model: nn.Sequential, forward: Forward, x: torch.Tensor, grad: torch.Tensor) -> Step[Tensors]:
    """The step of ``train``, for a model that is there already: each has an input and a gradient of its own."""
    coming, first_x, first_grad = itertools.count(), x.detach().clone(), grad.clone()

    def step() -> Tensors:
        number = next(coming)
        with torch.no_grad():
            x.copy_(first_x + number)
            grad.copy_(first_grad - number)
        x.grad = None
        model.zero_grad()
        for block in blocks(model):
            block.masks.clear()
        output = forward(x)
        # The forward's, which are the first: recomputation draws, and notes down, some more.
        results = {f"mask {index}": block.masks[0] for index, block in enumerate(blocks(model)) if block.masks}
        output.backward(grad)
        results |= {"output": output.detach(), "input gradient": gradient_of(x)}
        for name, parameter in model.named_parameters():
            results[f"{name} gradient"] = gradient_of(parameter)
            results[f"{name} after the step"] = parameter.detach() - LEARNING_RATE * gradient_of(parameter)
        return results

    return step
