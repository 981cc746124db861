"""Forward and backward of one model under every technique: for timing, and for what each takes of the memory.

L blocks, T rows of D features, H hidden features: a block adds to its input ``down(gelu(up(x)))``. Even ranks train.
The odd rank after each is its peer, which stores what it is lent, and otherwise does nothing.

A model of its own: what is checked elsewhere is small and returns everything, and this one fills a GPU and returns one
small number, so that nothing else is timed. ``test_racing.py`` compares each way with one device.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pytest_gpuperf import Context, Infeasible
from suites.activations.programs.ahead import offload_ahead
from suites.activations.programs.lending import lending_forward, lends, peers_plan, storing
from suites.activations.programs.techniques import Forward, Technique, keep, offload, recompute
from suites.shared.step import Step, Tensors
from suites.shared.training import squared_norm

LEND = "lend"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A model, and what each rank that trains trains it on."""

    blocks: int
    width: int
    hidden: int
    rows: int
    dtype: torch.dtype
    seed: int

    @property
    def weight_bytes(self) -> int:
        """The bytes of the weights of all blocks."""
        return self.blocks * 2 * self.width * self.hidden * self.dtype.itemsize

    @property
    def input_bytes(self) -> int:
        """The bytes of a block's input."""
        return self.rows * self.width * self.dtype.itemsize

    @property
    def saved_bytes(self) -> int:
        """What a block saves: its input, and the hidden features before and after GELU."""
        return self.input_bytes + 2 * self.rows * self.hidden * self.dtype.itemsize

    def flop(self, trainers: int) -> float:
        """The floating-point operations of a step, without what is computed twice.

        Each weight and row takes 2 in the forward and 4 in the backward. The input of the first matrix is data, and
        needs no gradient: each weight of that matrix takes 2 less.
        """
        return 2.0 * trainers * self.rows * self.width * self.hidden * (3 * 2 * self.blocks - 1)

    def model(self, device: torch.device) -> nn.Sequential:
        """The blocks, alike on all ranks."""
        generator = torch.Generator(device).manual_seed(self.seed)
        with device:
            model = nn.Sequential(*(Residual(self.width, self.hidden) for _ in range(self.blocks))).to(self.dtype)
        with torch.no_grad():
            for weight in model.parameters():
                weight.normal_(std=weight.shape[1] ** -0.5, generator=generator)
        return model

    def batch(self, rank: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """A rank's input and target."""
        generator = torch.Generator(device).manual_seed(self.seed + 1 + rank)
        x, target = torch.randn(2, self.rows, self.width, generator=generator, device=device).to(self.dtype)
        return x, target


class Residual(nn.Module):
    """A feed-forward layer beside its input; no two of its operations save the same tensor."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = x + self.down(functional.gelu(self.up(x)))
        return output


def recompute_half(ctx: Context, model: nn.Sequential) -> Forward:
    """Every second block keeps its input alone, the first one among them."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        for place, block in enumerate(model):
            x = block(x) if place % 2 else checkpoint(block, x, use_reentrant=False)
        return x

    return forward


RACED: Mapping[str, Technique] = {
    "keep": keep,
    "recompute": recompute,
    "recompute half": recompute_half,
    "offload": offload,
    "offload ahead": offload_ahead,
}
"""What a rank can do by itself; ``lend`` takes two."""


def kept_bytes(technique: str, work: Work) -> int:
    """Bytes that are kept on a rank that trains between forward and backward, its own input among them."""
    halved = (work.blocks + 1) // 2
    return {
        "keep": work.blocks * work.saved_bytes,
        "recompute": work.blocks * work.input_bytes,
        "recompute half": halved * work.input_bytes + (work.blocks - halved) * work.saved_bytes,
        "offload": work.input_bytes,
        "offload ahead": work.input_bytes + work.saved_bytes,
        LEND: work.input_bytes,
    }[technique]


def crossing_bytes(technique: str, work: Work) -> int:
    """Bytes that an offload takes to the host in a step, and as many back.

    torch's ``save_on_cpu`` takes the weights that backward needs along, though they stay on the device: all but the
    first one, whose input is data.
    """
    weights = {"offload": work.weight_bytes - work.width * work.hidden * work.dtype.itemsize, "offload ahead": 0}
    return work.blocks * work.saved_bytes + weights[technique]


def squared_error(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The mean, in float32 if the numbers have 16 bits."""
    exact = torch.promote_types(output.dtype, torch.float32)
    return functional.mse_loss(output.to(exact), target.to(exact))


def trainers(world_size: int) -> int:
    """How many ranks train."""
    return (world_size + 1) // 2


def train(ctx: Context, *, technique: str, work: Work) -> Step[torch.Tensor]:
    """A step returns, on every rank, the mean loss of the ranks that train and the norm of all their gradients.

    Args:
        ctx: the rank's context.
        technique: a key of ``RACED``, or ``lend``.
        work: the model and its batch.

    Raises:
        Infeasible: a rank has no peer.
    """
    if technique == LEND and ctx.world_size % 2:
        raise Infeasible(f"ranks lend in pairs, and {ctx.world_size} ranks leave one without a peer")
    trains = lends(ctx)
    model = work.model(ctx.device) if trains else nn.Sequential()
    x, target = work.batch(ctx.rank, ctx.device)
    parameters = list(model.parameters())
    store: Step[Tensors] | None = None
    if technique == LEND:
        plan = peers_plan(ctx, model, x, torch.zeros_like(x))
        store = None if plan is None else storing(ctx, plan)
    forward = lending_forward(ctx, model) if technique == LEND else RACED[technique](ctx, model)
    exact = torch.promote_types(work.dtype, torch.float32)

    def step() -> torch.Tensor:
        together = torch.zeros(2, dtype=exact, device=ctx.device)
        if trains:
            for parameter in parameters:
                parameter.grad = None
            loss = squared_error(forward(x), target)
            loss.backward()
            together[0] = loss.detach() / trainers(ctx.world_size)
            together[1] = squared_norm([value.grad for value in parameters if value.grad is not None])
        elif store is not None:
            store()
        dist.all_reduce(together)  # one message for both numbers
        return torch.stack([together[0], together[1].sqrt()])

    return step


@functools.cache  # a rank asks before and after each technique
def whole_loss(work: Work, world_size: int, device: torch.device) -> torch.Tensor:
    """The mean loss of the ranks that train, on one device and without hooks."""
    model = work.model(device)
    with torch.no_grad():
        losses = [
            squared_error(model(x), target)
            for x, target in (work.batch(rank, device) for rank in range(0, world_size, 2))
        ]
    return torch.stack(losses).mean()
