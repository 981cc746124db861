"""Gradient scalers with several optimizers, of which some skip a step, and with scales that the user changes.

A rank has three losses, each of another parameter: ``plain`` is stepped as usual, ``fused`` by an optimizer that
divides by the scale itself, ``sparse`` has gradients of some rows. All numbers are whole, and scales are powers of 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn.parallel import DistributedDataParallel

from pytest_gpuperf import Context
from suites.shared.inputs import integers
from suites.shared.step import Tensors

START = 2.0**10, 4.0, 0.25, 3
"""The scaler's scale, factors of growth and backoff, and steps between growths."""
NAMES = ("plain", "fused", "sparse")
OVERFLOWS: Mapping[int, tuple[int, str]] = {1: (1, "sparse"), 2: (0, "fused"), 4: (1, "plain")}
"""The rank and the loss that is infinite, by step."""
STEPS = 8
ROWS, TAKEN = 5, 4
"""The sparse parameter has so many rows; a rank takes so many in a step, some of them twice."""
MOMENTUM = 0.5


@dataclass(frozen=True, slots=True)
class Changes:
    """What the user sets after a step, by its number."""

    before: Callable[[torch.amp.GradScaler], None] = lambda scaler: None
    """Called before the scaler is updated."""
    scale: float | None = None
    """Given to the update."""
    as_tensor: bool = False


def _faster(scaler: torch.amp.GradScaler) -> None:
    scaler.set_growth_factor(8.0)
    scaler.set_growth_interval(1)


CHANGES: Mapping[int, Changes] = {
    2: Changes(lambda scaler: scaler.set_backoff_factor(0.5)),
    3: Changes(_faster),
    5: Changes(scale=2.0**7),
    6: Changes(scale=2.0**5, as_tensor=True),
}


class Losses(nn.Module):
    """The three losses of a rank, nested in a tuple."""

    def __init__(self, parameters: Tensors, *, sparse: bool) -> None:
        super().__init__()
        self.plain, self.fused = (nn.Parameter(parameters[name].clone()) for name in NAMES[:2])
        self.sparse = nn.Embedding.from_pretrained(parameters["sparse"].clone(), freeze=False, sparse=sparse)

    def forward(self, given: Tensors) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The loss of ``plain``, and those of the other two."""
        plain, fused = (
            (value * given[name]).sum() for name, value in zip(NAMES, (self.plain, self.fused), strict=False)
        )
        return plain, [fused, (self.sparse(given["rows"]) * given["sparse"]).sum()]


def parameters() -> Tensors:
    """What all ranks begin with."""
    shapes = {"plain": (3, 2), "fused": (4,), "sparse": (ROWS, 3)}
    return {name: integers(shape, torch.float64, seed=index) for index, (name, shape) in enumerate(shapes.items())}


def given_to(rank: int, step: int, degree: int) -> Tensors:
    """A rank's gradients of each parameter, multiples of ``degree``, and the rows that the sparse one's are of."""
    seed = 64 * step + 8 * rank
    shapes = {"plain": (3, 2), "fused": (4,), "sparse": (TAKEN, 3)}
    found = {
        name: degree * integers(shape, torch.float64, seed=seed + index)
        for index, (name, shape) in enumerate(shapes.items())
    }
    found["rows"] = torch.tensor([rank, (step + 1) % ROWS, rank, (step + 3) % ROWS])
    if OVERFLOWS.get(step, (None, ""))[0] == rank:
        found[OVERFLOWS[step][1]][0] = torch.inf
    return found


def _flat(losses: Any) -> list[torch.Tensor]:
    return [losses] if isinstance(losses, torch.Tensor) else [one for part in losses for one in _flat(part)]


def _scaled(scaler: torch.amp.GradScaler, losses: tuple[Any, ...], step: int) -> list[torch.Tensor]:
    """Scales all losses at once: as they are nested, or as an iterator that nests them."""
    if step % 2:
        return _flat(list(scaler.scale(iter(losses))))
    scaled: Any = scaler.scale(losses)
    kinds = type(scaled), [type(part) for part in scaled]
    assert kinds == (tuple, [torch.Tensor, list]), f"scaled losses are nested as {kinds}"
    return _flat(scaled)


def scaled(ctx: Context, *, sharded: bool, enabled: bool) -> list[Tensors]:
    """Parameters and scale after each step.

    Args:
        ctx: the rank's context.
        sharded: whether each rank trains parameters of its own, as shards are, and the scaler is the one for shards.
        enabled: whether the scaler scales; otherwise nothing overflows.
    """
    # NCCL adds no sparse tensors, so replicas on GPUs have dense gradients.
    network = Losses(parameters(), sparse=sharded or ctx.device.type == "cpu").to(ctx.device)
    module = network if sharded else DistributedDataParallel(network)
    optimizers = [
        torch.optim.SGD([network.plain], lr=1.0, momentum=MOMENTUM),
        torch.optim.SGD([network.fused], lr=1.0, momentum=MOMENTUM, fused=True),
        torch.optim.SGD(network.sparse.parameters(), lr=1.0),
    ]
    # The default group of ShardedGradScaler is the one of the moment in which torch was imported.
    kind = partial(ShardedGradScaler, process_group=dist.group.WORLD) if sharded else torch.amp.GradScaler
    scale, growth, backoff, interval = START
    first = kind(
        ctx.device.type,
        init_scale=scale,
        growth_factor=growth,
        backoff_factor=backoff,
        growth_interval=interval,
        enabled=enabled,
    )
    scaler = kind(ctx.device.type, enabled=enabled)
    scaler.load_state_dict(first.state_dict())  # before either has scaled anything
    told = []
    for step in range(STEPS):
        given = given_to(ctx.rank, step, ctx.world_size)
        if not enabled:
            given = {name: value.nan_to_num(posinf=8.0) for name, value in given.items()}
        given = {name: value.to(ctx.device) for name, value in given.items()}
        for optimizer in optimizers:
            optimizer.zero_grad()
        torch.stack(_scaled(scaler, module(given), step)).sum().backward()
        for index, optimizer in enumerate(optimizers):
            if (step + index) % 2:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
        _update(ctx, scaler, CHANGES.get(step, Changes()))
        values = (network.plain, network.fused, network.sparse.weight)
        of_step = {name: value.detach().clone() for name, value in zip(NAMES, values, strict=True)}
        told.append(of_step | {"scale": torch.tensor(scaler.get_scale(), dtype=torch.float64)})
    return told


def _update(ctx: Context, scaler: torch.amp.GradScaler, changes: Changes) -> None:
    changes.before(scaler)
    if changes.scale is None or not changes.as_tensor:
        scaler.update(changes.scale)
        return
    new = torch.tensor(changes.scale, device=ctx.device)
    scaler.update(new)
    new.fill_(0)  # which is ours again
