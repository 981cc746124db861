"""A split MLP in training: with dropout, and with gradients that are clipped by their global norm."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from pytest_gpuperf import Context
from suites.shared.inputs import Given, overwrite
from suites.shared.sharding import local_tensor
from suites.shared.step import Step, Tensors, gradient_of
from suites.tensor_parallel.programs.linear_layers import split_mlp
from suites.tensor_parallel.programs.steps import layer_steps


class Dropout(nn.Module):
    """Dropout that draws from a generator of its own, and remembers what it has kept."""

    def __init__(self, p: float, generator: torch.Generator):
        super().__init__()
        self.p = p
        self.generator = generator
        self.kept = torch.empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What is kept, scaled up by 1 / (1 - p)."""
        self.kept = torch.rand(x.shape, device=x.device, generator=self.generator) >= self.p
        return x * self.kept / (1 - self.p)


def mlp_with_dropout(ctx: Context, *, given: Sequence[Given], p: float, seed: int) -> Step[Tensors]:
    """The MLP with dropout of its hidden features and of its output.

    Hidden features are each rank's own, and so are the places that it drops there; the output is the same on all ranks,
    and must stay so. Hence two generators, one seeded by rank (Megatron-LM, ``tensor_parallel/random.py``). The step
    returns what was kept, too.
    """
    own, common = (torch.Generator(device=ctx.device) for _ in range(2))
    own.manual_seed(seed + 1 + ctx.rank)
    common.manual_seed(seed)
    module = split_mlp(ctx, given[0].parameters)
    hidden, output = Dropout(p, own), Dropout(p, common)
    module[1].register_forward_hook(lambda _module, _inputs, activation: hidden(activation))
    module.register_forward_hook(lambda _module, _inputs, activation: output(activation))
    step = layer_steps(ctx, module, given)

    def dropping() -> Tensors:
        return step() | {"hidden kept": hidden.kept.clone(), "output kept": output.kept.clone()}

    return dropping


def mlp_with_clipping(
    ctx: Context, *, given: Sequence[Given], rate: float, momentum: float, max_norm: float, norm_type: float
) -> Step[Tensors]:
    """A step of SGD after clipping; it returns the norm of all gradients, and this rank's parameters and momentum.

    Each of the ranks has some of the elements of the split parameters, and all of the last layer's bias, which the norm
    counts once. Each step begins with the parameters that it is given; the momentum goes on.
    """
    module = split_mlp(ctx, given[0].parameters)
    optimizer = torch.optim.SGD(module.parameters(), lr=rate, momentum=momentum)
    steps = itertools.cycle(given)

    def step() -> Tensors:
        now = next(steps)
        overwrite(module, now.parameters)
        optimizer.zero_grad()
        module(now.x.to(ctx.device)).backward(now.grad.to(ctx.device))
        norm = nn.utils.clip_grad_norm_(module.parameters(), max_norm, norm_type)
        assert isinstance(norm, DTensor)
        clipped = {f"{name} gradient": local_tensor(gradient_of(value)) for name, value in module.named_parameters()}
        optimizer.step()
        results = {"norm": local_tensor(norm.full_tensor()), **clipped}
        for name, value in module.named_parameters():
            results |= {name: local_tensor(value), f"{name} momentum": local_tensor(momentum_of(optimizer, value))}
        return results

    return step


def momentum_of(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> torch.Tensor:
    """The optimizer's momentum of one parameter."""
    buffer: torch.Tensor = optimizer.state[parameter]["momentum_buffer"]
    return buffer
