"""A step of training of a split block as a CUDA graph: each step's inputs are copied into tensors that the graph reads.

Forward, backward, their four sums over the ranks and SGD with momentum are one graph on each rank. Without a GPU the
same step is taken as it is.
"""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from pytest_gpuperf import Context
from suites.shared.sharding import local_gradient, local_tensor, parallelized
from suites.shared.step import Tensors, captured, warmed_up
from suites.tensor_parallel.programs.block import BlockShape, plan, whole
from suites.tensor_parallel.programs.training import momentum_of

RATE, MOMENTUM = 2.0**-6, 0.5


def batch(ctx: Context, shape: BlockShape, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A step's input and the gradient of its output, alike on all ranks."""
    generator = torch.Generator(ctx.device).manual_seed(shape.seed * 1024 + number)
    size = (2, shape.sequences, shape.length, shape.width)
    x, grad = torch.randn(size, generator=generator, dtype=shape.dtype, device=ctx.device)
    return x, grad


class SplitBlock:
    """The block with its optimizer, and the tensors that a step reads: they stay where they are."""

    def __init__(self, ctx: Context, shape: BlockShape) -> None:
        self._ctx, self._shape = ctx, shape
        self._block = parallelized(ctx, whole(ctx, shape), plan())
        self._initial = {name: local_tensor(value) for name, value in self._block.named_parameters()}
        self._optimizer = torch.optim.SGD(self._block.parameters(), lr=RATE, momentum=MOMENTUM)
        x, self._grad = (torch.zeros_like(tensor) for tensor in batch(ctx, shape, 0))
        self._x = x.requires_grad_()
        self.taken = 0
        """How often Python went through a step: a graph is replayed without it."""

    @torch.no_grad()
    def load(self, number: int) -> None:
        """Puts a step's input and output gradient where the step reads them."""
        for place, tensor in zip((self._x, self._grad), batch(self._ctx, self._shape, number), strict=True):
            place.copy_(tensor)

    def step(self) -> torch.Tensor:
        """Trains on what is loaded; returns the output."""
        self.taken += 1
        # Backward allocates them anew: in a graph, always in the same places.
        self._x.grad = None
        self._optimizer.zero_grad()
        output: torch.Tensor = self._block(self._x)
        output.backward(self._grad)
        self._optimizer.step()
        return output.detach()

    def results(self, output: torch.Tensor) -> Tensors:
        """Copies of what the last step has left."""
        leaves = {"input": self._x, **dict(self._block.named_parameters())}
        gradients = {f"{name} gradient": local_gradient(leaf, name) for name, leaf in leaves.items()}
        parameters = {name: local_tensor(value) for name, value in self._block.named_parameters()}
        return {"output": local_tensor(output)} | gradients | parameters

    @torch.no_grad()
    def restart(self) -> None:
        """Makes undone what warm-ups have trained, in place."""
        for name, value in self._block.named_parameters():
            assert isinstance(value, DTensor)
            value.to_local().copy_(self._initial[name])
            momentum = momentum_of(self._optimizer, value)
            assert isinstance(momentum, DTensor)
            momentum.to_local().zero_()


def train(ctx: Context, *, shape: BlockShape, steps: int, graph: bool) -> tuple[list[Tensors], int]:
    """So many steps, as a CUDA graph or as they are.

    Returns:
        Of each step the output and the input's gradient, and this rank's shards of gradients and parameters; and how
        often Python went through a step.
    """
    split = SplitBlock(ctx, shape)
    split.load(steps)  # what no step gets
    take = (captured if graph else warmed_up)(split.step)
    split.restart()
    results = []
    for number in range(steps):
        split.load(number)
        results.append(split.results(take()))
    return results, split.taken
