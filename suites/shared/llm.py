"""A whole training step of a Llama-shaped model under FSDP2, as people take it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from pytest_gpuperf import Context
from suites.shared.llama import Config, Llama, draw_on_device, flop_of_step, loss_of
from suites.shared.step import Step

LEARNING_RATE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model, and what each rank trains it on."""

    config: Config
    sequences: int
    """The number of sequences on each rank."""
    length: int
    """Tokens of a sequence."""
    seed: int
    """The seed of weights and tokens."""
    compute: torch.dtype
    """The dtype of the products and of the parameters that travel; gradients travel in the parameters' own dtype."""
    parameters: torch.dtype = torch.float32
    """What parameters and the optimizer's state are held in."""

    def tokens(self, world_size: int) -> int:
        """Tokens of a step, on all ranks together."""
        return world_size * self.sequences * self.length

    def flop(self, world_size: int) -> float:
        """Floating-point operations of a step, on all ranks together."""
        return flop_of_step(self.config, world_size * self.sequences, self.length)

    def batch(self, ctx: Context) -> tuple[torch.Tensor, torch.Tensor]:
        """The rank's tokens, and the tokens that follow them."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = (ctx.world_size, self.sequences, self.length + 1)
        mine = torch.randint(self.config.vocabulary, shape, generator=generator)[ctx.rank].to(ctx.device)
        return mine[:, :-1].contiguous(), mine[:, 1:].contiguous()

    def model(self, device: torch.device) -> Llama:
        """The whole model, alike on all ranks."""
        with device:
            model = Llama(self.config, 0, 1).to(self.parameters)
        draw_on_device(model, self.config, self.seed)
        return model


def fused_adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer that most language models are trained with, in one kernel."""
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True)


def sharded(ctx: Context, work: Workload, *, alone: bool = False) -> Llama:
    """The model under FSDP2, each layer by itself.

    Args:
        ctx: the rank's context.
        work: the model.
        alone: each rank shards over itself: the same steps and copies, and nothing to send.
    """
    model = work.model(ctx.device)
    mesh = ctx.mesh((ctx.world_size, 1), ("others", "alone"))["alone"] if alone else ctx.mesh((ctx.world_size,))
    policy = MixedPrecisionPolicy(param_dtype=work.compute, reduce_dtype=work.parameters)
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def fsdp2(ctx: Context, *, work: Workload) -> Step[torch.Tensor]:
    """Forward, backward and the optimizer; returns the loss of all ranks' tokens, as it was before the step."""
    return training_step(ctx, work, sharded(ctx, work))


def training_step(ctx: Context, work: Workload, model: Llama) -> Step[torch.Tensor]:
    """The step of a model that is split already."""
    optimizer = fused_adamw(list(model.parameters()))
    x, target = work.batch(ctx)

    def step() -> torch.Tensor:
        loss = loss_of(model(x), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return mean_of_ranks(ctx, loss)

    return step


def mean_of_ranks(ctx: Context, loss: torch.Tensor) -> torch.Tensor:
    """The mean of the ranks' losses, each of which is over the same number of tokens."""
    mean = loss.detach().float() if loss.dtype != torch.float64 else loss.detach().clone()
    dist.all_reduce(mean)
    return mean / ctx.world_size
