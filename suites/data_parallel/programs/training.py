"""What a step of training does besides averaging: clipping, scaling, masking, buffers, dropout, compiling.

A network of one hidden layer in float64, on rows that differ by rank and step. Each program trains it for some steps
with DistributedDataParallel, and returns what a step leaves on the rank, by step and name.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from pytest_gpuperf import Context
from suites.shared.course import HIDDEN, IGNORED, LR, MAX_NORM, OVERFLOWS, SCALE, Course
from suites.shared.step import Tensors, gradient_of

DROPPED = 0.75
"""What dropout leaves out: not a half, which is as much as it keeps."""
TINY_BUCKETS = 2.0**-20
"""MiB: each parameter a bucket of its own."""


def _report(number: int, network: nn.Module, **more: torch.Tensor) -> Tensors:
    """Copies of what a step has left, by its number."""
    named = {f"{name} gradient": gradient_of(value, name) for name, value in network.named_parameters()}
    named |= dict(network.named_parameters()) | dict(network.named_buffers()) | more
    return {f"step {number}, {name}": value.detach().clone() for name, value in named.items()}


def clipped(ctx: Context, *, course: Course, max_norm: float = MAX_NORM) -> Tensors:
    """The norm of all gradients together is at most ``max_norm`` when the optimizer takes them."""
    network = course.network().to(ctx.device)
    wrapped = DistributedDataParallel(network, bucket_cap_mb=TINY_BUCKETS)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=LR)
    told: Tensors = {}
    for number in range(course.steps):
        x, _ = (tensor.to(ctx.device) for tensor in course.batch(ctx.rank, number))
        optimizer.zero_grad()
        wrapped(x).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(wrapped.parameters(), max_norm)
        optimizer.step()
        told |= _report(number, network, norm=norm)
    return told


def of_valid_tokens(ctx: Context, *, course: Course) -> Tensors:
    """The loss is the mean over the valid rows of all ranks, of which each has another number."""
    network = course.network().to(ctx.device)
    wrapped = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=LR)
    told: Tensors = {}
    for number in range(course.steps):
        x, classes = (tensor.to(ctx.device) for tensor in course.batch(ctx.rank, number))
        optimizer.zero_grad()
        valid = classes.ne(IGNORED).sum()
        torch.distributed.all_reduce(valid)
        total = functional.cross_entropy(wrapped(x), classes, ignore_index=IGNORED, reduction="sum")
        # DistributedDataParallel divides by the number of ranks what was divided by all valid rows already.
        (total * ctx.world_size / valid).backward()
        optimizer.step()
        told |= _report(number, network)
    return told


class _Scaled:
    """Training with a gradient scaler, which can be saved and loaded."""

    def __init__(self, ctx: Context, course: Course, **of_scaler: Any) -> None:
        self._ctx, self._course = ctx, course
        self.network = course.network().to(ctx.device)
        self.wrapped = DistributedDataParallel(self.network)
        self.optimizer = torch.optim.SGD(self.wrapped.parameters(), lr=LR, momentum=0.5)
        self.scaler = torch.amp.GradScaler(ctx.device.type, **of_scaler)

    def step(self, number: int) -> Tensors:
        """Parameters and scale after this step, by its number."""
        x, _ = (tensor.to(self._ctx.device) for tensor in self._course.batch(self._ctx.rank, number))
        self.optimizer.zero_grad()
        loss = self.wrapped(x).square().mean()
        if (number, self._ctx.rank) == OVERFLOWS:
            loss = loss * torch.inf
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.wrapped.parameters(), MAX_NORM)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        parameters = {name: value.detach().clone() for name, value in self.network.named_parameters()}
        scale = torch.tensor(self.scaler.get_scale(), dtype=torch.float64)
        return {f"step {number}, {name}": value for name, value in {**parameters, "scale": scale}.items()}

    def state(self) -> list[dict[str, Any]]:
        """A copy of all that has to be saved."""
        parts = self.network.state_dict(), self.optimizer.state_dict(), self.scaler.state_dict()
        return [copy.deepcopy(part) for part in parts]

    def load(self, state: list[dict[str, Any]]) -> None:
        """Puts it back."""
        of_network, of_optimizer, of_scaler = state
        self.network.load_state_dict(of_network)
        self.optimizer.load_state_dict(of_optimizer)
        self.scaler.load_state_dict(of_scaler)


def scaled(
    ctx: Context,
    *,
    course: Course,
    growth_interval: int = 1000,
    stops: Collection[int] = (),
    used: bool = False,
) -> Tensors:
    """A gradient scaler skips the step in which one rank overflows, on all ranks, and halves its scale.

    Args:
        ctx: the rank's context.
        course: what is trained.
        growth_interval: steps without an overflow after which the scale doubles.
        stops: the steps after which all is saved, built anew without these settings, and loaded.
        used: whether what is built anew takes a step before it loads.
    """
    training = _Scaled(ctx, course, init_scale=SCALE, growth_interval=growth_interval)
    told: Tensors = {}
    for number in range(course.steps):
        told |= training.step(number)
        if number in stops:
            saved = training.state()
            training = _Scaled(ctx, course)
            if used:
                training.step(number)
            training.load(saved)
    return told


def normalised(ctx: Context, *, course: Course) -> Tensors:
    """Batch normalisation: rank 0's running statistics are all ranks' when a step begins, and its own rows' follow."""
    linear, tanh, out = course.network()
    network = nn.Sequential(linear, nn.BatchNorm1d(HIDDEN, momentum=0.5).double(), tanh, out).to(ctx.device)
    with torch.no_grad():
        network.get_buffer("1.running_mean").fill_(ctx.rank)  # ranks start with buffers of their own
    wrapped = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=LR)
    told: Tensors = {}
    for number in range(course.steps):
        x, _ = (tensor.to(ctx.device) for tensor in course.batch(ctx.rank, number))
        optimizer.zero_grad()
        wrapped(x).square().mean().backward()
        optimizer.step()
        told |= _report(number, network)
    return told


def dropped(ctx: Context, *, course: Course) -> Tensors:
    """Dropout draws another mask on each rank and at each step; backward takes the one that forward drew."""
    torch.manual_seed(course.seed * 64 + ctx.rank)
    linear, tanh, out = course.network()
    network = nn.Sequential(linear, tanh, nn.Dropout(DROPPED), out).to(ctx.device)
    wrapped = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=LR)
    masks: list[torch.Tensor] = []
    network[2].register_forward_hook(lambda module, inputs, output: masks.append(output.ne(0).double()))
    told: Tensors = {}
    for number in range(course.steps):
        x, _ = (tensor.to(ctx.device) for tensor in course.batch(ctx.rank, number))
        optimizer.zero_grad()
        wrapped(x).square().mean().backward()
        optimizer.step()
        told |= _report(number, network, mask=masks[-1])
    return told


def compiled(ctx: Context, *, course: Course, backend: str) -> Tensors:
    """The step's forward and backward compiled."""
    network = course.network().to(ctx.device)
    wrapped = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=LR)
    forward = torch.compile(wrapped, backend=backend)
    told: Tensors = {}
    for number in range(course.steps):
        x, _ = (tensor.to(ctx.device) for tensor in course.batch(ctx.rank, number))
        optimizer.zero_grad()
        forward(x).square().mean().backward()
        optimizer.step()
        told |= _report(number, network)
    return told


def in_backward(ctx: Context, *, course: Course) -> Tensors:
    """The optimizer takes each gradient as soon as it is the mean of all ranks', and lets go of it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
        from torch.distributed.optim import _apply_optimizer_in_backward
    network = course.network().to(ctx.device)
    for value in network.parameters():
        value.register_hook(_mean)
    _apply_optimizer_in_backward(torch.optim.SGD, network.parameters(), {"lr": LR})
    told: Tensors = {}
    for number in range(course.steps):
        x, _ = (tensor.to(ctx.device) for tensor in course.batch(ctx.rank, number))
        network(x).square().mean().backward()
        told |= {f"step {number}, {name}": value.detach().clone() for name, value in network.named_parameters()}
    return told


def _mean(gradient: torch.Tensor) -> torch.Tensor:
    total = gradient.clone()
    torch.distributed.all_reduce(total)
    return total / torch.distributed.get_world_size()
