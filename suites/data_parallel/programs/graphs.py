"""A data-parallel step of training as a CUDA graph: each step's inputs are copied into tensors that the graph reads.

Forward, backward, the mean of all gradients in one bucket and Adam are one graph on each rank. Whatever differs from
step to step lies in tensors of the device: the batch and the learning rate. Without a GPU the same step is taken as it
is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from pytest_gpuperf import Context
from suites.shared.course import Course
from suites.shared.step import Tensors, captured, gradient_of, warmed_up

# Dyadic, and so are the rates that it is given: they are the same numbers in float32, which the fused kernel reads.
BETAS, EPS = (0.5, 0.75), 2.0**-10


class Replica:
    """The network with its optimizer, and all tensors that a step reads and writes: they stay where they are."""

    def __init__(self, ctx: Context, course: Course) -> None:
        self._ctx, self._course = ctx, course
        self.network = course.network().to(ctx.device)
        self._initial = {name: value.detach().clone() for name, value in self.network.named_parameters()}
        parameters = list(self.network.parameters())
        self._bucket = torch.zeros(sum(value.numel() for value in parameters), dtype=torch.float64, device=ctx.device)
        # Gradients are views of the bucket: backward adds to it in place.
        views = self._bucket.split([value.numel() for value in parameters])
        for parameter, view in zip(parameters, views, strict=True):
            parameter.grad = view.view_as(parameter)
        self._x = torch.zeros_like(course.batch(ctx.rank, 0)[0], device=ctx.device)
        self._loss = torch.zeros((), dtype=torch.float64, device=ctx.device)
        self._rate = torch.zeros((), device=ctx.device)
        # Fused, which takes the rate from the device's memory when it runs; a number would be part of the graph.
        self._optimizer = torch.optim.Adam(parameters, lr=self._rate, betas=BETAS, eps=EPS, fused=True, capturable=True)
        self.taken = 0
        """How often Python went through a step: a graph is replayed without it."""

    def load(self, number: int, rate: float) -> None:
        """Puts a step's batch and learning rate where the step reads them."""
        self._x.copy_(self._course.batch(self._ctx.rank, number)[0])
        self._rate.fill_(rate)

    def step(self) -> torch.Tensor:
        """Trains on what is loaded; returns the mean of the ranks' losses, in the same tensor each time."""
        self.taken += 1
        self._bucket.zero_()
        loss = self.network(self._x).square().mean()
        loss.backward()
        self._loss.copy_(loss.detach())
        summed = (self._bucket, self._loss)
        # Both sums are on their way at a time.
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in summed]:
            assert work is not None
            work.wait()
        for tensor in summed:
            tensor /= self._ctx.world_size
        self._optimizer.step()
        return self._loss

    @torch.no_grad()
    def restart(self) -> None:
        """Makes undone what warm-ups have trained, in place: parameters, Adam's moments and its number of steps."""
        for name, value in self.network.named_parameters():
            value.copy_(self._initial[name])
        for state in self._optimizer.state.values():
            for value in state.values():
                value.zero_()


def train(ctx: Context, *, course: Course, rates: Sequence[float], graph: bool) -> tuple[Tensors, int]:
    """A step for each of the learning rates, as a CUDA graph or as it is.

    Returns:
        Loss, gradients and parameters after each step, by step and name; and how often Python went through a step.
    """
    replica = Replica(ctx, course)
    replica.load(len(rates), 1.0)  # a batch that no step gets
    take = (captured if graph else warmed_up)(replica.step)
    replica.restart()
    results: Tensors = {}
    for number, rate in enumerate(rates):
        replica.load(number, rate)
        loss = take()
        named = {"loss": loss, **dict(replica.network.named_parameters()), **_gradients(replica.network)}
        results |= {f"step {number}, {name}": value.detach().clone() for name, value in named.items()}
    return results, replica.taken


def _gradients(network: nn.Module) -> Tensors:
    return {f"{name} gradient": gradient_of(value, name) for name, value in network.named_parameters()}
