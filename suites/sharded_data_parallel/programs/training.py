"""Fully sharded training with clipping and a gradient scaler: what needs a number of all shards together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor

from pytest_gpuperf import Context
from suites.shared.course import LR, MAX_NORM, OVERFLOWS, SCALE, Course
from suites.shared.step import Tensors, gradient_of


def _sharded(ctx: Context, course: Course) -> nn.Sequential:
    """The network, each layer sharded over all ranks by itself."""
    network = course.network().to(ctx.device)
    mesh = ctx.mesh((ctx.world_size,))
    for layer in (network[0], network[2], network):
        fully_shard(layer, mesh=mesh)
    return network


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """All shards together."""
    gathered = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return gathered.detach().clone()


def clipped(ctx: Context, *, course: Course, max_norm: float = MAX_NORM) -> Tensors:
    """The norm of the gradients of all shards together is at most ``max_norm`` when the optimizer takes them.

    Odd steps clip tensor by tensor.
    """
    network = _sharded(ctx, course)
    optimizer = torch.optim.SGD(network.parameters(), lr=LR)
    told: Tensors = {}
    for number in range(course.steps):
        x, _ = (tensor.to(ctx.device) for tensor in course.batch(ctx.rank, number))
        optimizer.zero_grad()
        network(x).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(network.parameters(), max_norm, foreach=False if number % 2 else None)
        optimizer.step()
        told[f"step {number}, norm"] = _whole(norm)
        for name, value in network.named_parameters():
            told[f"step {number}, {name} gradient"] = _whole(gradient_of(value, name))
            told[f"step {number}, {name}"] = _whole(value)
    return told


def clipped_by_value(ctx: Context, *, course: Course, most: float, norm_types: Sequence[float]) -> Tensors:
    """No element of a gradient is beyond ``most`` on either side when the optimizer takes it; norms of what it was.

    Odd steps clip tensor by tensor.
    """
    network = _sharded(ctx, course)
    optimizer = torch.optim.SGD(network.parameters(), lr=LR)
    told: Tensors = {}
    for number in range(course.steps):
        x, _ = (tensor.to(ctx.device) for tensor in course.batch(ctx.rank, number))
        optimizer.zero_grad()
        network(x).square().mean().backward()
        gradients = [gradient_of(value) for value in network.parameters()]
        for norm_type in norm_types:
            told[f"step {number}, {norm_type:g}-norm"] = _whole(nn.utils.get_total_norm(gradients, norm_type))
            one_by_one = nn.utils.get_total_norm(gradients, norm_type, foreach=False)
            told[f"step {number}, {norm_type:g}-norm, one by one"] = _whole(one_by_one)
        nn.utils.clip_grad_value_(network.parameters(), most, foreach=False if number % 2 else None)
        optimizer.step()
        for name, value in network.named_parameters():
            told[f"step {number}, {name} gradient"] = _whole(gradient_of(value, name))
            told[f"step {number}, {name}"] = _whole(value)
    return told


def scaled(ctx: Context, *, course: Course) -> Tensors:
    """A scaler skips the step in which one rank's shard of one gradient is infinite, on all ranks."""
    network = _sharded(ctx, course)
    optimizer = torch.optim.SGD(network.parameters(), lr=LR, momentum=0.5)
    scaler = torch.amp.GradScaler(ctx.device.type, init_scale=SCALE, growth_interval=1000)
    told: Tensors = {}
    for number in range(course.steps):
        x, _ = (tensor.to(ctx.device) for tensor in course.batch(ctx.rank, number))
        optimizer.zero_grad()
        _backward(network, x, scaler)
        if (number, ctx.rank) == OVERFLOWS:
            # As a sum that overflows does: the others' shards are all finite.
            gradient = gradient_of(network.get_parameter("0.weight"))
            assert isinstance(gradient, DTensor)
            gradient.to_local().view(-1)[0] = torch.inf  # in place: a view of the shard
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(network.parameters(), MAX_NORM)
        scaler.step(optimizer)
        scaler.update()
        told |= {f"step {number}, {name}": _whole(value) for name, value in network.named_parameters()}
        told[f"step {number}, scale"] = torch.tensor(scaler.get_scale(), dtype=torch.float64)
    return told


def scaled_in_pairs(ctx: Context, *, wrong: tuple[int, int], steps: int) -> Tensors:
    """A scaler of two neighbours: both skip the step if either overflows. Two steps in a row without that double it.

    Args:
        ctx: the rank's context.
        wrong: the step and the rank that overflow.
        steps: of the training.

    Returns:
        What moves by 1 in each step, and the scale after each.
    """
    pair = ctx.mesh((ctx.world_size // 2, 2), ("pair", "member")).get_group("member")
    value = nn.Parameter(torch.ones(2, device=ctx.device))
    optimizer = torch.optim.SGD([value], lr=1.0)
    scaler = ShardedGradScaler(ctx.device.type, init_scale=SCALE, process_group=pair, growth_interval=2)
    scales = []
    for number in range(steps):
        optimizer.zero_grad()
        loss = value.sum() * (torch.inf if (number, ctx.rank) == wrong else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return {"value": value.detach().clone(), "scales": torch.tensor(scales)}


def replaced(ctx: Context, *, course: Course) -> Tensors:
    """Outputs of each rank's rows before and after a state takes the place of all parameters, twice as large."""
    network = _sharded(ctx, course)
    x = course.batch(ctx.rank, 0)[0].to(ctx.device)
    before = network(x).detach()
    network.load_state_dict({name: 2 * value for name, value in network.state_dict().items()}, assign=True)
    return {"before": before, "after": network(x).detach()}


def _backward(network: nn.Module, x: torch.Tensor, scaler: torch.amp.GradScaler) -> None:
    scaler.scale(network(x).square().mean()).backward()


def refuses(ctx: Context, *, course: Course, wrong: int) -> bool:
    """Whether clipping refuses gradients of which one rank's shard is infinite; none is, if no rank is wrong."""
    network = _sharded(ctx, course)
    x, _ = (tensor.to(ctx.device) for tensor in course.batch(ctx.rank, 0))
    _backward(network, x, torch.amp.GradScaler(ctx.device.type, enabled=False))
    if ctx.rank == wrong:
        gradient = gradient_of(network.get_parameter("0.weight"))
        assert isinstance(gradient, DTensor)
        gradient.to_local().view(-1)[0] = torch.inf  # in place: a view of the shard
    try:
        nn.utils.clip_grad_norm_(network.parameters(), MAX_NORM, error_if_nonfinite=True)
    except RuntimeError as error:
        return "non-finite" in str(error)
    return False
