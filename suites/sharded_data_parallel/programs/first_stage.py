"""ZeRO-1 as users have it: groups of parameters with settings of their own, closures and freezing."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_gpuperf import Context
from suites.shared.course import Course
from suites.shared.step import Tensors
from suites.shared.training import zero_redundancy

DEFAULTS: dict[str, Any] = {"lr": 0.25, "momentum": 0.25}
FROZEN_FROM = 2
"""The step from which the first layer's bias is frozen; before it the groups' settings change."""
FROZEN = "0.bias"


def groups(network: nn.Sequential) -> list[dict[str, Any]]:
    """Weights with a decay and the default learning rate, biases with one of their own and other momentum."""
    weights = [value for name, value in network.named_parameters() if name.endswith("weight")]
    biases = [value for name, value in network.named_parameters() if name.endswith("bias")]
    return [{"params": weights, "weight_decay": 0.125}, {"params": biases, "lr": 0.5, "momentum": 0.75}]


def of_step(network: nn.Sequential, optimizer: torch.optim.Optimizer, step: int) -> None:
    """What changes before a step."""
    if step == FROZEN_FROM:
        for group, setting in ((1, "lr"), (1, "momentum"), (0, "weight_decay")):
            optimizer.param_groups[group][setting] /= 2
        network.get_parameter(FROZEN).requires_grad_(False)


def in_groups(ctx: Context, *, course: Course, buckets: bool) -> Tensors:
    """Parameters, and the rank's loss, after each step; the optimizer evaluates the model itself.

    Args:
        ctx: the rank's context.
        course: what is trained.
        buckets: whether ranks send all parameters of one of them in one tensor.
    """
    network = course.network().to(ctx.device)
    module = DistributedDataParallel(network)
    optimizer = zero_redundancy()(groups(network), torch.optim.SGD, parameters_as_bucket_view=buckets, **DEFAULTS)
    told: Tensors = {}
    for step in range(course.steps):
        x, _ = (tensor.to(ctx.device) for tensor in course.batch(ctx.rank, step))
        of_step(network, optimizer, step)
        if step == FROZEN_FROM:
            module = DistributedDataParallel(network)  # a parameter that is frozen needs another wrapper

        def closure(x: torch.Tensor = x, module: nn.Module = module) -> float:
            optimizer.zero_grad()
            loss: torch.Tensor = module(x).square().mean()
            loss.backward()
            return float(loss)

        loss: Any = optimizer.step(closure)
        told |= {f"step {step}, {name}": value.detach().clone() for name, value in network.named_parameters()}
        told[f"step {step}, loss of rank {ctx.rank}"] = torch.tensor(loss, dtype=torch.float64)
    return told
