"""Optimizers that train alone and average the parameters from time to time."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager

from pytest_gpuperf import Context

PERIODS = {2: 2, 4: 4}
"""Of the hierarchy: how many neighbours average, by how often they do it."""
WARMUP = 3
"""Steps before the first average; no period divides them."""

Kind = Literal["periodic", "hierarchical"]


def averager(ctx: Context, kind: Kind) -> Any:
    """One that averages over all ranks in every other step, or over more ranks the less often."""
    if kind == "periodic":
        return PeriodicModelAverager(period=2, warmup_steps=WARMUP, process_group=ctx.group)
    return HierarchicalModelAverager(
        period_group_size_dict=OrderedDict(PERIODS), warmup_steps=WARMUP, process_group=ctx.group
    )


def trained(
    ctx: Context, *, kind: Kind, start: torch.Tensor, gradients: Sequence[Sequence[torch.Tensor]], reloaded: int
) -> list[torch.Tensor]:
    """The rank's parameter after each step of SGD with the rate 1.

    Args:
        ctx: the rank's context.
        kind: of the averager.
        start: the parameter that all ranks begin with.
        gradients: of each step and rank.
        reloaded: after so many steps the optimizer's state enters a new optimizer with a new averager.
    """
    parameter = nn.Parameter(start.to(ctx.device).clone())
    optimizer = _optimizer(ctx, kind, parameter)
    found = []
    for number, of_ranks in enumerate(gradients):
        if number == reloaded:
            state = optimizer.state_dict()
            optimizer = _optimizer(ctx, kind, parameter)
            optimizer.load_state_dict(state)
        optimizer.zero_grad()
        parameter.grad = of_ranks[ctx.rank].to(ctx.device).clone()
        optimizer.step()
        found.append(parameter.detach().clone().cpu())
    return found


def _optimizer(ctx: Context, kind: Kind, parameter: nn.Parameter) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
        from torch.distributed.optim import PostLocalSGDOptimizer
    return PostLocalSGDOptimizer(torch.optim.SGD([parameter], lr=1.0), averager(ctx, kind))
