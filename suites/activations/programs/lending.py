"""A training step whose activations are lent to a peer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from pytest_gpuperf import Context
from suites.activations.programs.techniques import (
    Forward,
    Weights,
    blocks_step,
    network,
    on_device,
    parameter_of,
    under,
)
from suites.shared.step import Step, Tensors


@dataclass(slots=True)
class Plan:
    """What a rank lends in one step: shape and dtype of each tensor, and the order in which it wants them back."""

    tensors: list[tuple[torch.Size, torch.dtype]] = field(default_factory=list)
    fetches: list[int] = field(default_factory=list)


def lend(ctx: Context, *, weights: Weights, x: torch.Tensor, grad: torch.Tensor, dropout: bool) -> Step[Tensors]:
    """Even ranks train; the odd rank after each stores its activations and sends them back during backward.

    What pipeline stages do whose neighbours have room (Kim et al., BPipe, ICML 2023). The step of an odd rank
    returns what it stored.
    """
    model = network(ctx, weights, dropout=dropout)
    leaves = on_device(ctx, x, grad)
    plan = peers_plan(ctx, model, *leaves)
    if plan is not None:
        return storing(ctx, plan)
    return blocks_step(model, lending_forward(ctx, model), *leaves)


def lends(ctx: Context) -> bool:
    """Whether this rank's activations go to the next one."""
    return ctx.rank % 2 == 0


def lending_forward(ctx: Context, model: nn.Sequential) -> Forward:
    """The forward of a rank that lends."""
    return under(lambda: saved_tensors_hooks(*lending(ctx, model)), model)


def peers_plan(ctx: Context, model: nn.Sequential, x: torch.Tensor, grad: torch.Tensor) -> Plan | None:
    """What the rank before this one lends to it; None on a rank that lends itself.

    A trial step finds it out once, so that later no message needs to announce another.

    Raises:
        ValueError: a rank has no peer.
    """
    if ctx.world_size % 2:
        raise ValueError(f"ranks lend in pairs: the world must be of even size, got {ctx.world_size}")
    plan = Plan()
    if lends(ctx):
        with saved_tensors_hooks(*noting(plan, model)):
            output = model(x)
        output.backward(grad)
    plans: list[Any] = [None] * ctx.world_size
    # Not the plan itself: torch pickles by reference, and the ranks may be unable to import this module.
    dist.all_gather_object(plans, (plan.tensors, plan.fetches))
    return None if lends(ctx) else Plan(*plans[ctx.rank - 1])


def noting(plan: Plan, model: nn.Module) -> tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]:
    """Hooks that keep everything and note down what ``lending`` would send and fetch."""
    stays = parameter_of(model)

    def pack(tensor: torch.Tensor) -> tuple[int | None, torch.Tensor]:
        if stays(tensor):
            return None, tensor
        plan.tensors.append((tensor.shape, tensor.dtype))
        return len(plan.tensors) - 1, tensor

    def unpack(saved: tuple[int | None, torch.Tensor]) -> torch.Tensor:
        index, tensor = saved
        if index is not None:
            plan.fetches.append(index)
        return tensor

    return pack, unpack


Lent = tuple[torch.Size, torch.dtype] | torch.Tensor


def lending(ctx: Context, model: nn.Module) -> tuple[Callable[[torch.Tensor], Lent], Callable[[Lent], torch.Tensor]]:
    """Hooks that send each saved tensor to the next rank and receive it again."""
    stays = parameter_of(model)
    peer = ctx.rank + 1

    def pack(tensor: torch.Tensor) -> Lent:
        if stays(tensor):
            return tensor
        dist.send(tensor.contiguous(), peer)
        return tensor.shape, tensor.dtype

    def unpack(saved: Lent) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        shape, dtype = saved
        fetched = torch.empty(shape, dtype=dtype, device=ctx.device)
        dist.recv(fetched, peer)
        return fetched

    return pack, unpack


def storing(ctx: Context, plan: Plan) -> Step[Tensors]:
    """The other half of ``lending``."""
    peer = ctx.rank - 1

    def step() -> Tensors:
        stored = [torch.empty(shape, dtype=dtype, device=ctx.device) for shape, dtype in plan.tensors]
        for tensor in stored:
            dist.recv(tensor, peer)
        for index in plan.fetches:
            dist.send(stored[index], peer)
        return {str(index): tensor for index, tensor in enumerate(stored)}

    return step
