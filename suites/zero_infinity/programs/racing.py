"""Training steps of one model whose parameters and optimizer state live on the GPU, in the host's memory or in files.

R ranks. Each keeps 1 / R of every block: values and AdamW's two moments, in float32. A step brings the values to the
device, gathers the blocks in the dtype of computation, scatters the mean gradients, and lets AdamW update each share
where it lives. Only the place differs.

A block adds to its input ``down(gelu(up(x)))``: D features a row, H hidden features.

A model of its own: what is checked elsewhere is small and returns everything, and this one fills a GPU and returns one
small number, so that nothing else is timed. ``test_racing.py`` compares each way with one device.
"""

from __future__ import annotations

import functools
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional

from pytest_gpuperf import Context, GiB, Infeasible
from suites.shared.step import Step
from suites.shared.training import squared_norm
from suites.zero_infinity.programs.offloading import Home, disk, shard_size

GPU, PINNED, FILES = "GPU", "pinned host", "mapped files"
PLACES = (GPU, PINNED, FILES)
MASTER = torch.float32
KEPT = 3  # numbers of each element: its value and two moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A model, and what each rank trains it on."""

    blocks: int
    width: int
    hidden: int
    rows: int
    """Rows on each rank."""
    compute: torch.dtype
    """The dtype of products and of parameters that travel between ranks."""
    seed: int
    learning_rate: float = 1e-4

    @property
    def numel(self) -> int:
        """Elements of a block."""
        return 2 * self.width * self.hidden

    def share(self, world_size: int) -> int:
        """Elements that a rank keeps of all blocks."""
        return self.blocks * shard_size(self.numel, world_size)

    def crossing_bytes(self, world_size: int) -> int:
        """Bytes that a step takes over PCIe in either direction: values to the GPU, and gradients from it."""
        return self.share(world_size) * MASTER.itemsize

    def state_bytes(self, world_size: int) -> int:
        """Bytes of a rank's values and moments."""
        return KEPT * self.share(world_size) * MASTER.itemsize

    def flop(self, world_size: int) -> float:
        """Floating-point operations of a step, on all ranks together.

        There are 2 for each weight and row in the forward, and 4 in the backward.
        The input of the first matrix is data, and needs no gradient: 2 less for each of its weights.
        """
        return 2.0 * world_size * self.rows * self.width * self.hidden * (3 * 2 * self.blocks - 1)

    def block(self, index: int, device: torch.device) -> torch.Tensor:
        """The values that a block begins with, flat; alike on all ranks."""
        generator = torch.Generator(device).manual_seed(self.seed + index)
        up, down = (torch.randn(self.numel // 2, generator=generator, device=device) for _ in range(2))
        return torch.cat([up / self.width**0.5, down / self.hidden**0.5])

    def batch(self, rank: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """A rank's input and target."""
        generator = torch.Generator(device).manual_seed(self.seed + 1000 + rank)
        shape = (2, self.rows, self.width)
        x, target = torch.randn(shape, generator=generator, device=device).to(self.compute)
        return x, target

    def loss(self, blocks: list[torch.Tensor], x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The mean squared error of the blocks one after the other, which are flat and of the dtype of computation."""
        for flat in blocks:
            up, down = flat.view(2, -1)
            hidden = functional.gelu(functional.linear(x, up.view(self.hidden, self.width)))
            x = x + functional.linear(hidden, down.view(self.width, self.hidden))
        return functional.mse_loss(x.to(MASTER), target.to(MASTER))


def home_at(ctx: Context, place: str, folder: Path) -> Home:
    """Makes zeros that live in a place; files are of a folder and lose their names at once, so that none is left."""
    if place == GPU:
        return lambda name, numel, dtype: torch.zeros(numel, dtype=dtype, device=ctx.device)
    if place == PINNED:
        pinned = ctx.device.type == "cuda"  # a CPU alone has no pinned memory
        return lambda name, numel, dtype: torch.zeros(numel, dtype=dtype, pin_memory=pinned)

    def unnamed(name: str, numel: int, dtype: torch.dtype) -> torch.Tensor:
        file = f"rank{ctx.rank}.{name}"
        mapped = disk(folder)(file, numel, dtype)
        (folder / file).unlink()
        return mapped

    return unnamed


def require_room(ctx: Context, folder: Path, work: Work) -> None:
    """Refuses files that the disk has no room for: who writes to a mapped file beyond that is killed.

    Raises:
        Infeasible: on all ranks, since the rank that sees the least speaks for all.
    """
    needed = ctx.world_size * work.state_bytes(ctx.world_size)
    free = torch.tensor(float(shutil.disk_usage(folder).free), dtype=torch.float64, device=ctx.device)
    dist.all_reduce(free, dist.ReduceOp.MIN)
    if needed > float(free):
        raise Infeasible(f"does not fit: the files need {needed / GiB:.1f} GiB, {float(free) / GiB:.1f} GiB are free")


class Share:
    """What a rank keeps of one block, and the gradient of it, which is where the values are."""

    def __init__(self, ctx: Context, work: Work, index: int, home: Home) -> None:
        size = shard_size(work.numel, ctx.world_size)
        self.values = home(f"{index}.values", size, MASTER)
        mine = work.block(index, ctx.device)[ctx.rank * size : (ctx.rank + 1) * size]
        self.values[: len(mine)].copy_(mine)
        self.state = {name: home(f"{index}.{name}", size, MASTER) for name in ("exp_avg", "exp_avg_sq")}
        self.state["step"] = torch.zeros((), dtype=torch.float32, device=self.values.device)
        # Of files, too, gradients are in memory: they live for a moment only.
        pinned = ctx.device.type == "cuda" and self.values.device.type == "cpu"
        self.values.grad = torch.zeros(size, dtype=MASTER, device=self.values.device, pin_memory=pinned)

    def bring(self, ctx: Context, work: Work) -> torch.Tensor:
        """The whole block on the device."""
        local = self.values.to(ctx.device, non_blocking=True).to(work.compute)
        whole = torch.empty(ctx.world_size * len(local), dtype=local.dtype, device=ctx.device)
        dist.all_gather_into_tensor(whole, local)
        return whole[: work.numel]

    def take(self, ctx: Context, gradient: torch.Tensor) -> torch.Tensor:
        """Sends this rank's share of the mean gradient home; returns the share, on the device."""
        size = len(self.values)
        padded = functional.pad(gradient, (0, size * ctx.world_size - len(gradient)))
        mine = gradient.new_empty(size)
        dist.reduce_scatter_tensor(mine, padded)
        exact = mine.to(MASTER).div_(ctx.world_size)
        assert self.values.grad is not None
        self.values.grad.copy_(exact, non_blocking=True)
        return exact


class Training:
    """A rank's shares, with the optimizer that updates them in place.

    Raises:
        Infeasible: the disk has no room for the files.
    """

    def __init__(self, ctx: Context, place: str, work: Work, folder: Path) -> None:
        if place == FILES:
            require_room(ctx, folder, work)
        home = home_at(ctx, place, folder)
        self._ctx, self._work = ctx, work
        self.shares = [Share(ctx, work, index, home) for index in range(work.blocks)]
        self._optimizer = torch.optim.AdamW([share.values for share in self.shares], lr=work.learning_rate, fused=True)
        for share in self.shares:
            # The share's own, in place of the moments that the optimizer would make in memory.
            self._optimizer.state[share.values] = dict(share.state)
        self._x, self._target = work.batch(ctx.rank, ctx.device)
        self._away = ctx.device.type == "cuda" and place != GPU

    def step(self) -> torch.Tensor:
        """A step; returns the loss of all ranks' rows, as it was before the step, and the gradients' norm."""
        ctx, work = self._ctx, self._work
        blocks = [share.bring(ctx, work).requires_grad_() for share in self.shares]
        loss = work.loss(blocks, self._x, self._target)
        gradients = torch.autograd.grad(loss, blocks)
        own = [share.take(ctx, gradient) for share, gradient in zip(self.shares, gradients, strict=True)]
        together = torch.stack([loss.detach() / ctx.world_size, squared_norm(own)])
        dist.all_reduce(together)  # one message for both numbers
        if self._away:
            torch.cuda.current_stream().synchronize()  # the host's optimizer reads what was copied to it
        self._optimizer.step()
        return torch.stack([together[0], together[1].sqrt()])


def train(ctx: Context, *, place: str, work: Work, folder: Path) -> Step[torch.Tensor]:
    """A step of training with everything in a place."""
    return Training(ctx, place, work, folder).step


def fetch(ctx: Context, *, place: str, work: Work, folder: Path) -> Step[list[torch.Tensor]]:
    """The step's copies to the device alone; returns the values there."""
    shares = [Share(ctx, work, index, home_at(ctx, place, folder)) for index in range(work.blocks)]
    there = [torch.empty(len(share.values), dtype=MASTER, device=ctx.device) for share in shares]

    def step() -> list[torch.Tensor]:
        for share, copy in zip(shares, there, strict=True):
            copy.copy_(share.values, non_blocking=True)
        return there

    return step


@functools.cache  # a rank asks before and after each place
def whole_loss(work: Work, world_size: int, device: torch.device) -> torch.Tensor:
    """The loss of all ranks' rows with the values that training begins with."""
    blocks = [work.block(index, device).to(work.compute) for index in range(work.blocks)]
    with torch.no_grad():
        losses = [work.loss(blocks, *work.batch(rank, device)) for rank in range(world_size)]
    return torch.stack(losses).mean()
