"""Optimizers that train alone and average the parameters from time to time."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager

from pytest_gpuperf import Context
from suites.shared.step import Tensors

PERIODS = {2: 2, 4: 4}
"""The hierarchy of averages: how many neighbours average, by the number of steps after which they do it."""
WARMUP = 3
"""Steps before the first average; no period divides them."""

MOMENTUM = 0.5

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
    """The rank's parameters after each step of SGD with the rate 1 and momentum, in one tensor.

    The first number is one parameter, which the optimizer begins with. The other numbers are added later, as a group.

    Args:
        ctx: the rank's context.
        kind: of the averager.
        start: the parameter that all ranks begin with.
        gradients: of each step and rank.
        reloaded: after so many steps the optimizer's state enters a new optimizer with a new averager.
    """
    parameters = [nn.Parameter(part.to(ctx.device).clone()) for part in (start[:1], start[1:])]
    optimizer = _optimizer(ctx, kind, parameters)
    found = []
    for number, of_ranks in enumerate(gradients):
        if number == reloaded:
            state = optimizer.state_dict()
            optimizer = _optimizer(ctx, kind, parameters)
            optimizer.load_state_dict(state)
        optimizer.zero_grad()
        own = of_ranks[ctx.rank].to(ctx.device)
        for parameter, part in zip(parameters, (own[:1], own[1:]), strict=True):
            parameter.grad = part.clone()
        optimizer.step()
        found.append(torch.cat([parameter.detach() for parameter in parameters]).cpu())
    return found


def _optimizer(ctx: Context, kind: Kind, parameters: list[nn.Parameter]) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
        from torch.distributed.optim import PostLocalSGDOptimizer
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(parameters[:1], lr=1.0, momentum=MOMENTUM), averager(ctx, kind))
    optimizer.add_param_group({"params": parameters[1:]})
    return optimizer


def averaged(ctx: Context, *, given: list[list[torch.Tensor]], kind: Literal["groups", "parameters"]) -> Tensors:
    """Parameters once the ranks of a pair have averaged theirs; a third rank does not belong to it.

    Args:
        ctx: the rank's context.
        given: the parameters that each rank has.
        kind: whether the parameters are given one by one, or in groups of an optimizer; the first has no gradient.
    """
    pair = dist.new_group([0, 1])
    parameters = [nn.Parameter(value.to(ctx.device)) for value in given[ctx.rank]]
    for parameter in parameters[1:]:
        parameter.grad = torch.ones_like(parameter)
    averager = PeriodicModelAverager(period=1, process_group=pair)
    groups = [{"params": parameters[:2]}, {"params": parameters[2:]}]
    averager.average_parameters(torch.optim.SGD(groups).param_groups if kind == "groups" else parameters)
    return {str(number): value.detach().cpu() for number, value in enumerate(parameters)}
