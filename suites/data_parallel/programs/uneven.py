"""DistributedDataParallel whose ranks end at different steps, with a parameter that some steps leave out and a buffer.

It also leaves parameters and buffers alone that it is told to ignore.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms import Join, Joinable, JoinHook
from torch.nn.parallel import DistributedDataParallel

from pytest_gpuperf import Context
from suites.shared.inputs import integers
from suites.shared.step import Tensors, gradient_of
from suites.shared.training import zero_redundancy

DECAY = 0.5
"""The weights' decay: a parameter without a gradient keeps its value, and one whose gradient is 0 doesn't."""


def gradients(rank: int, step: int, degree: int) -> Tensors:
    """A rank's gradients of both parameters, multiples of ``degree``."""
    seeds = {"always": 0, "at times": 1}
    return {
        name: degree * integers((3,), torch.float64, seed=64 * step + 8 * rank + seed) for name, seed in seeds.items()
    }


def uses(rank: int, step: int) -> bool:
    """Whether the rank's step uses the second parameter: first none does, then one, then all.

    Once a rank has ended, torch 2.13 takes a parameter that it has used for used in each later step.
    """
    return step > 1 or (step, rank) == (1, 1)


class Uneven(nn.Module):
    """Two parameters, of which the second one is used at times, and a buffer that counts calls."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.always = nn.Parameter(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64) + rank)
        self.at_times = nn.Parameter(torch.tensor([8.0, 16.0, 32.0], dtype=torch.float64) + rank)
        self.calls: torch.Tensor
        self.register_buffer("calls", torch.tensor([100.0 * rank], dtype=torch.float64))

    def forward(self, given: Tensors, used: bool) -> torch.Tensor:
        """The loss whose gradients are given."""
        self.calls += 1
        loss = (self.always * given["always"]).sum()
        return loss + (self.at_times * given["at times"]).sum() if used else loss

    def now(self) -> Tensors:
        """Copies of both parameters and of the buffer."""
        held = {"always": self.always, "at times": self.at_times, "calls": self.calls}
        return {name: value.detach().clone() for name, value in held.items()}


def joined(ctx: Context, *, lengths: list[int]) -> list[Tensors]:
    """Parameters and buffer after each step of a rank, which adds its number to the buffer, and at the end."""
    network = Uneven(ctx.rank).to(ctx.device)
    module = DistributedDataParallel(network, find_unused_parameters=True)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0, weight_decay=DECAY)
    told = []
    with module.join():
        for step in range(lengths[ctx.rank]):
            given = gradients(ctx.rank, step, ctx.world_size)
            optimizer.zero_grad()
            module({name: value.to(ctx.device) for name, value in given.items()}, uses(ctx.rank, step)).backward()
            optimizer.step()
            network.calls += ctx.rank
            told.append(network.now())
    return [*told, network.now()]


class _Averaging(Joinable):
    """Averages gradients over all ranks, of which those that have ended add nothing, and get the mean as well."""

    def __init__(self, ctx: Context, network: nn.Module) -> None:
        super().__init__()
        self._ctx, self._network = ctx, network

    def average(self, *, ended: bool = False) -> None:
        """Replaces each gradient by the mean."""
        if not ended:
            work = Join.notify_join_context(self)
            if work is not None:
                work.wait()
        for value in self._network.parameters():
            total = torch.zeros_like(value) if ended else gradient_of(value).clone()
            dist.all_reduce(total)
            value.grad = total / self._ctx.world_size

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """Called by torch when the rank has ended."""
        return _Ended(self)

    @property
    def join_device(self) -> torch.device:
        """Where ranks tell each other whether they have ended."""
        return self._ctx.device

    @property
    def join_process_group(self) -> Any:
        """All ranks."""
        return dist.group.WORLD


class _Ended(JoinHook):
    """Does what a step of the others does, with no gradients."""

    def __init__(self, averaging: _Averaging) -> None:
        self._averaging = averaging

    def main_hook(self) -> None:
        """Called with each step of the others."""
        self._averaging.average(ended=True)


def joined_optimizer(ctx: Context, *, lengths: list[int], buckets: bool) -> list[Tensors]:
    """Parameters after each step of a rank, which has a part of the optimizer's state, and at the end.

    DistributedDataParallel leaves old gradients to a rank that has ended, and its part of the optimizer would take
    them (torch 2.13): here another module averages, by torch's class for such.

    Args:
        ctx: the rank's context.
        lengths: how many steps each rank has.
        buckets: whether ranks send all parameters of one of them in one tensor.
    """
    network = Uneven(0).to(ctx.device)
    averaging = _Averaging(ctx, network)
    optimizer: Any = zero_redundancy()(
        network.parameters(), torch.optim.SGD, parameters_as_bucket_view=buckets, lr=1.0, momentum=0.5
    )
    told = []
    with Join([averaging, optimizer]):
        for step in range(lengths[ctx.rank]):
            given = gradients(ctx.rank, step, ctx.world_size)
            optimizer.zero_grad()
            network({name: value.to(ctx.device) for name, value in given.items()}, True).backward()
            averaging.average()
            optimizer.step()
            told.append(network.now())
    return [*told, network.now()]


class Nested(nn.Module):
    """A part whose buffer and first parameter are ignored, and one that isn't."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.kept, self.shared = Uneven(rank), Uneven(rank)

    def forward(self, given: Tensors) -> torch.Tensor:
        """The sum of both parts' losses."""
        loss: torch.Tensor = self.kept(given, True) + 2 * self.shared(given, True)
        return loss


IGNORED = ["kept.always", "kept.calls"]


def ignoring(ctx: Context, *, steps: int) -> list[Tensors]:
    """Parameters and buffers after each step, by name; the first is of before."""
    network = Nested(ctx.rank).to(ctx.device)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(network, IGNORED)
    module = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)

    def now() -> Tensors:
        return {name: value.detach().clone() for name, value in network.state_dict().items()}

    told = [now()]
    for step in range(steps):
        given = gradients(ctx.rank, step, ctx.world_size)
        optimizer.zero_grad()
        module({name: value.to(ctx.device) for name, value in given.items()}).backward()
        optimizer.step()
        told.append(now())
    return told
