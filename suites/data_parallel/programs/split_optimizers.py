"""Optimizers whose state the ranks of a group share, by ZeroRedundancyOptimizer; rank 0 is not in the group.

Gradients are given, the same on all ranks. The state is brought together on one rank, enters another optimizer, and is
brought together again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pytest_gpuperf import Context
from suites.shared.inputs import integers
from suites.shared.step import Tensors
from suites.shared.training import zero_redundancy

MEMBERS = (1, 2)
"""The ranks of the group, of three."""
SHAPES = ((3, 4), (5,), (2, 2), (1,), (7,))
IDLE = 3
"""The parameter that never has a gradient, and no state."""
FROZEN = 1
"""The parameter that is frozen until the second step."""
BEFORE, AFTER = 2, 2
"""Steps before the state is brought together, and after it."""
KINDS: Mapping[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adam": (torch.optim.Adam, {"amsgrad": True, "foreach": False}),
    "scalars": (torch.optim.ASGD, {"t0": 1.0, "lambd": 0.25, "foreach": False}),
    "momentum": (torch.optim.SGD, {"momentum": 0.5, "nesterov": True}),
}
"""Classes and their options; the first two have numbers as tensors without dimensions."""

Make = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]


def parameters() -> list[nn.Parameter]:
    """Those that training begins with."""
    return [
        nn.Parameter(integers(shape, torch.float64, seed=place), requires_grad=place != FROZEN)
        for place, shape in enumerate(SHAPES)
    ]


def groups(of: list[nn.Parameter]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Two groups, and one that is added later."""
    return [{"params": of[:2], "lr": 0.25}, {"params": of[2:4], "lr": 0.5}], {"params": of[4:], "lr": 0.125}


@dataclass(slots=True)
class Training:
    """Parameters with an optimizer."""

    parameters: list[nn.Parameter]
    optimizer: torch.optim.Optimizer

    @classmethod
    def of(cls, parameters: list[nn.Parameter], make: Make) -> Training:
        """Makes the optimizer of the first groups, and adds the last one."""
        first, later = groups(parameters)
        optimizer = make(first)
        optimizer.add_param_group(later)
        return cls(parameters, optimizer)

    def train(self, step: int) -> Tensors:
        """Takes a step with given gradients; returns the parameters."""
        if step == 1:
            self.parameters[FROZEN].requires_grad_()
        for place, value in enumerate(self.parameters):
            if place != IDLE and value.requires_grad:
                value.grad = integers(tuple(value.shape), value.dtype, seed=64 * step + place).to(value.device)
        if step == 1:
            self.optimizer.param_groups[1]["lr"] /= 2
            self.optimizer.param_groups[1]["weight_decay"] = 0.25
        self.optimizer.step()
        return {
            f"step {step}, parameter {place}": value.detach().cpu().clone()
            for place, value in enumerate(self.parameters)
        }


def told_of(state: dict[str, Any], moment: str) -> Tensors:
    """Tensors and settings of an optimizer's state dictionary."""
    found: Tensors = {}
    for place, values in state["state"].items():
        found |= {
            f"{moment}, parameter {place}, {key}": torch.as_tensor(value)
            for key, value in values.items()
            if value is not None
        }
    for number, group in enumerate(state["param_groups"]):
        found |= {f"{moment}, group {number}, {key}": torch.tensor(group[key]) for key in ("lr", "params")}
    return {name: value.detach().cpu().clone() for name, value in found.items()}


def trained(ctx: Context, *, kind: str, buckets: bool) -> Tensors | None:
    """Parameters after each step, and the whole state after some; None of a rank outside of the group.

    Args:
        ctx: the rank's context.
        kind: a key of ``KINDS``.
        buckets: whether ranks send all parameters of one of them in one tensor.
    """
    group = dist.new_group(list(MEMBERS))
    if ctx.rank not in MEMBERS:
        return None
    made, options = KINDS[kind]

    def make(of: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return zero_redundancy()(of, made, process_group=group, parameters_as_bucket_view=buckets, **options)

    def together(training: Training, to: int) -> dict[str, Any]:
        consolidating: Any = training.optimizer
        consolidating.consolidate_state_dict(to=to)
        held: list[Any] = [training.optimizer.state_dict() if dist.get_rank(group) == to else None]
        dist.broadcast_object_list(held, src=MEMBERS[to], group=group, device=ctx.device)
        return dict(held[0])

    told: Tensors = {}
    training = Training.of(
        [nn.Parameter(value.detach().to(ctx.device), requires_grad=value.requires_grad) for value in parameters()], make
    )
    for step in range(BEFORE):
        told |= training.train(step)
        state = together(training, to=1)
        told |= told_of(state, f"after {step}")
    training = Training.of([nn.Parameter(value.detach().clone()) for value in training.parameters], make)
    training.optimizer.load_state_dict(copy.deepcopy(state))
    for step in range(BEFORE, BEFORE + AFTER):
        told |= training.train(step)
    return told | told_of(together(training, to=0), "at last")
