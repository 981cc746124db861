"""A small model that is trained on one device and on ranks, with a place for each fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F  # noqa: N812  # as everybody calls it

from benchmarks.parity.regions import Copy, Reduce
from pytest_gpuperf import Context, watch
from pytest_gpuperf.features.parity.records import Trace

WIDTH, CLASSES, ROWS = 12, 6, 8
Batch = tuple[torch.Tensor, torch.Tensor]
Step = Callable[[int, nn.Module, torch.optim.Optimizer], None]


class Net(nn.Module):
    """A residual block, a norm and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (rows, width) to logits."""
        out: torch.Tensor = self.head(self.norm(x + self.down(F.gelu(self.up(x)))))
        return out


def build(seed: int = 1) -> Net:
    """The model with random weights, norms and biases included."""
    torch.manual_seed(seed)
    net = Net()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter) / 8)
    return net


def batches(steps: int, rows: int = ROWS) -> list[Batch]:
    """Inputs and targets; different in each step."""
    g = torch.Generator().manual_seed(7)
    return [(torch.randn(rows, WIDTH, generator=g), torch.randint(CLASSES, (rows,), generator=g)) for _ in range(steps)]


def share(data: Sequence[Batch], rank: int, world: int) -> list[Batch]:
    """A rank's rows of each batch."""
    return [(x.chunk(world)[rank], y.chunk(world)[rank]) for x, y in data]


def nothing(step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Does nothing between the backward pass and the update."""


def averaged(step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Averages all gradients over the ranks."""
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
        assert parameter.grad is not None
        parameter.grad /= dist.get_world_size()


def adamw(net: nn.Module, **changes: Any) -> torch.optim.Optimizer:
    """The optimizer of both sides, unless a fault changes it."""
    return torch.optim.AdamW(net.parameters(), **{"lr": 1e-2, "weight_decay": 0.1, **changes})


def sgd(net: nn.Module, **changes: Any) -> torch.optim.Optimizer:
    """A plain optimizer."""
    return torch.optim.SGD(net.parameters(), **{"lr": 0.1, **changes})


def train(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Sequence[Batch],
    finish: Step = nothing,
    *,
    microbatches: int = 1,
    weigh: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = F.cross_entropy,
) -> Trace:
    """Trains, and returns the trace.

    Args:
        net: the model.
        optimizer: of its parameters.
        data: a batch for each step.
        finish: what happens to the gradients before the update.
        microbatches: into how many a batch is cut.
        weigh: the loss of logits and targets.
    """
    with watch(net, optimizer) as trace:
        for step, (x, y) in enumerate(data):
            optimizer.zero_grad()
            for a, b in zip(x.chunk(microbatches), y.chunk(microbatches), strict=True):
                (weigh(net(a), b) / microbatches).backward()
            finish(step, net, optimizer)
            optimizer.step()
    return trace


def copied(x: torch.Tensor) -> torch.Tensor:
    """Enters a tensor-parallel region."""
    out: torch.Tensor = Copy.apply(x)  # type: ignore[no-untyped-call]
    return out


def reduced(x: torch.Tensor) -> torch.Tensor:
    """Leaves a tensor-parallel region."""
    out: torch.Tensor = Reduce.apply(x)  # type: ignore[no-untyped-call]
    return out


class Split(nn.Module):
    """The net with its block split over ranks by hand.

    Args:
        ctx: of the rank.
        fault: ``bias before the sum``, ``no sum``, ``no sum backward`` or ``swapped``.
    """

    def __init__(self, ctx: Context, fault: str = "") -> None:
        super().__init__()
        whole, world = build(), ctx.world_size
        rank = world - 1 - ctx.rank if fault == "swapped" else ctx.rank
        self.fault = fault
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH // world), nn.Linear(2 * WIDTH // world, WIDTH)
        self.norm, self.head = whole.norm, whole.head
        self.up.weight.data = whole.up.weight.data.chunk(world)[rank].clone()
        self.up.bias.data = whole.up.bias.data.chunk(world)[rank].clone()
        self.down.weight.data = whole.down.weight.data.chunk(world, 1)[rank].clone()
        self.down.bias.data = whole.down.bias.data.clone()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (rows, width) to logits."""
        h = F.gelu(self.up(x if self.fault == "no sum backward" else copied(x)))
        if self.fault == "bias before the sum":
            h = reduced(self.down(h))
        elif self.fault == "no sum":
            h = self.down(h)
        else:
            h = reduced(F.linear(h, self.down.weight)) + self.down.bias
        out: torch.Tensor = self.head(self.norm(x + h))
        return out
