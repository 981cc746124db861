"""Training of one network that is split twice: its tensors on one level of ranks, its batch on the other.

Blocks of W features and H hidden ones: x + relu(x U') D'. As Megatron-LM does (arXiv 1909.08053), ranks that split the
tensors have rows of U and columns of D; they sum outputs in the forward pass and gradients of inputs in the backward.
Ranks that split the batch sum gradients of weights. The loss is half the sum of squares of what the output is off by.
Weights move by the sign of their gradients, so that whole numbers stay whole and small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.multi_node.programs.levels import Levels
from suites.shared.inputs import integers
from suites.shared.step import Step, Tensors

LARGEST = 2  # magnitude of whole numbers at first


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A network, and what all ranks together train it on."""

    blocks: int
    width: int
    hidden: int
    """A multiple of the ranks, as the rows are."""
    rows: int
    dtype: torch.dtype
    seed: int
    rate: float
    """By how much a step moves each weight."""
    whole: bool = False
    """Whether all numbers are whole; otherwise they are those of a normal distribution."""

    def weights(self) -> Tensors:
        """By name, on the CPU: alike wherever they are drawn."""
        shapes = {"up": (self.hidden, self.width), "down": (self.width, self.hidden)}
        return {
            f"{block}.{name}": self._draw(shape, 2 * block + place) / (1 if self.whole else math.sqrt(shape[1]))
            for block in range(self.blocks)
            for place, (name, shape) in enumerate(shapes.items())
        }

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets, on the CPU."""
        x, target = (self._draw((self.rows, self.width), 2 * self.blocks + place) for place in range(2))
        return x, target

    def _draw(self, shape: tuple[int, ...], stream: int) -> torch.Tensor:
        seed = self.seed * 64 + stream
        if self.whole:
            return integers(shape, self.dtype, seed=seed, low=-LARGEST, high=LARGEST)
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(self.dtype)


def tensors_inside(ctx: Context, *, task: Task, nodes: int) -> Step[torch.Tensor]:
    """Each node holds the whole network, split over its ranks; nodes have shares of the batch."""
    return Training(ctx, task, nodes, inside=True).step


def tensors_across(ctx: Context, *, task: Task, nodes: int) -> Step[torch.Tensor]:
    """The network is split over the nodes; the ranks of a node have shares of the batch."""
    return Training(ctx, task, nodes, inside=False).step


class Training:
    """A rank's part of it."""

    def __init__(self, ctx: Context, task: Task, nodes: int, *, inside: bool) -> None:
        """Draws the rank's part of weights and batch.

        Args:
            ctx: the rank's context.
            task: what is trained.
            nodes: how many there are.
            inside: whether the tensors are split inside nodes, and the batch across them; otherwise the reverse.
        """
        levels = Levels.of(ctx, nodes)
        self._tensors, self._data = (levels.inside, levels.across) if inside else (levels.across, levels.inside)
        tensors, data = (dist.get_rank(group) for group in (self._tensors, self._data))
        whole = {
            name: value.chunk(self._tensors.size(), 0 if name.endswith("up") else 1)[tensors].to(ctx.device)
            for name, value in task.weights().items()
        }
        self._flat = torch.zeros(sum(part.numel() for part in whole.values()), dtype=task.dtype, device=ctx.device)
        self.weights: Tensors = {}
        self.gradients: Tensors = {}
        """The gradients from all ranks' rows, after a step."""
        for (name, part), own in zip(whole.items(), self._flat.split([p.numel() for p in whole.values()]), strict=True):
            self.weights[name] = part.contiguous().requires_grad_()
            self.weights[name].grad = self.gradients[name] = own.view(part.shape)
        self._x, self._target = (part.chunk(self._data.size())[data].to(ctx.device) for part in task.batch())
        self._task = task

    def step(self) -> torch.Tensor:
        """Forward, backward and the update; returns the loss of all rows, as it was before."""
        self._flat.zero_()
        x = self._x
        for block in range(self._task.blocks):
            up, down = (self.weights[f"{block}.{name}"] for name in ("up", "down"))
            hidden = (_entering(x, self._tensors) @ up.T).relu()
            x = x + _leaving(hidden @ down.T, self._tensors)
        off = x - self._target
        loss = off.to(torch.promote_types(off.dtype, torch.float32)).square().sum() / 2
        loss.backward()
        _sum(self._flat, self._data)
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.sub_(self.gradients[name].sign(), alpha=self._task.rate)
        return _sum(loss.detach(), self._data)


def train_steps(ctx: Context, *, task: Task, nodes: int, inside: bool, steps: int) -> list[Tensors]:
    """For each step the loss, and the rank's part of gradients and weights after it."""
    training = Training(ctx, task, nodes, inside=inside)
    told = []
    for _ in range(steps):
        found = {"loss": training.step().clone()}
        for name, weight in training.weights.items():
            found |= {f"{name} gradient": training.gradients[name].clone(), name: weight.detach().clone()}
        told.append(found)
    return told


def _sum(tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Sums in place over a group; alone it sends nothing."""
    if group.size() > 1:
        dist.all_reduce(tensor, group=group)
    return tensor


class _Entering(torch.autograd.Function):
    """The input of a split block: alike on all of its ranks, so its gradient is the sum of theirs."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        context.group = group
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _sum(gradients[0].contiguous().clone(), context.group), None


class _Leaving(torch.autograd.Function):
    """The output of a split block: the sum of what its ranks have."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        return _sum(x.contiguous().clone(), group)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


def _entering(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    entered: torch.Tensor = _Entering.apply(x, group)  # type: ignore[no-untyped-call]
    return entered


def _leaving(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    left: torch.Tensor = _Leaving.apply(x, group)  # type: ignore[no-untyped-call]
    return left
