"""Norm, tensor-parallel MLP and dropout, with everything outside the MLP's matmuls on a part of the sequence.

Korthikanti et al. 2022, Reducing Activation Recomputation in Large Transformer Models, arXiv:2205.05198, section 4.2.2,
by torch.distributed.tensor.parallel. B batch, S tokens, W width; x is [B, S, W], and of R ranks rank r holds the tokens
r * S/R to (r + 1) * S/R. Tensor-parallel layers want all tokens and give back summands: the all-gather before the MLP
and the reduce-scatter behind it take the place of tensor parallelism's all-reduce.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from pytest_gpuperf import Context
from suites.shared.inputs import Given, overwrite
from suites.shared.sharding import local_tensor
from suites.shared.step import Step, Tensors, gradient_of
from suites.shared.traffic import Traffic, ring_bytes

Norm = Literal["layer", "rms"]

NORMS: dict[Norm, Callable[..., nn.Module]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}
EPS = 1e-5

TOKENS = 1  # the dimension


class Block(nn.Module):
    """x + dropout(down(tanh(up(norm(x))))); tanh, since it has no kink at which rounding decides the gradient."""

    def __init__(self, norm: Norm, width: int, hidden: int, *, p: float, dtype: torch.dtype, device: torch.device):
        super().__init__()
        self.norm = NORMS[norm](width, EPS, dtype=dtype, device=device)
        self.up = nn.Linear(width, hidden, bias=False, dtype=dtype, device=device)
        self.down = nn.Linear(hidden, width, bias=False, dtype=dtype, device=device)
        self.dropout = nn.Dropout(p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.dropout(self.down(self.up(self.norm(x)).tanh()))
        return x + y


def tokens_of(tensor: torch.Tensor, degree: int) -> tuple[torch.Tensor, ...]:
    """What each rank holds: the sequence in equal parts.

    Equal, since DTensor takes a rank's part, times R, for the whole sequence's size.
    """
    tokens = tensor.shape[TOKENS]
    if tokens % degree:
        raise ValueError(
            f"a sequence of {tokens} tokens cannot be split over {degree} ranks: pad it to a multiple of {degree}"
        )
    return tensor.chunk(degree, TOKENS)


def sequence_parallel(block: Block, mesh: DeviceMesh) -> Block:
    """The block with each rank's tokens as input and output."""
    plan: dict[str, ParallelStyle] = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(TOKENS)),
        "down": RowwiseParallel(output_layouts=Shard(TOKENS)),
        "dropout": SequenceParallel(use_local_output=True),
    }
    # All ranks hold the same parameters already: nobody need send any.
    parallelize_module(block, mesh, plan, src_data_rank=None)
    return block


def tensor_parallel(block: Block, mesh: DeviceMesh) -> Block:
    """The block with all tokens as input and output of every rank."""
    parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()}, src_data_rank=None)
    return block


def _mesh(ctx: Context) -> DeviceMesh:
    return ctx.mesh((ctx.world_size,))


def _block(ctx: Context, norm: Norm, parameters: Tensors, p: float = 0.0) -> Block:
    hidden, width = parameters["up.weight"].shape
    block = Block(norm, width, hidden, p=p, dtype=parameters["up.weight"].dtype, device=ctx.device)
    block.load_state_dict(parameters)
    return block


def summed(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds, and of a sum the sum.

    The gradient of a norm's weight is one: DTensor adds up the ranks' tokens when it is used, not before.
    """
    if isinstance(tensor, DTensor) and any(placement.is_partial() for placement in tensor.placements):
        tensor = tensor.redistribute(placements=[Replicate()])
    return local_tensor(tensor)


def clips_sums(ctx: Context) -> bool:
    """Whether this torch clips a gradient whose sum over the ranks DTensor has yet to compute. torch 2.11 does not.

    The gradient of a norm's weight is such a sum, beside gradients that are split.
    """
    mesh = _mesh(ctx)
    weights = [
        nn.Parameter(DTensor.from_local(torch.zeros(1, device=ctx.device), mesh, [placement]))
        for placement in (Replicate(), Shard(0))
    ]
    for weight, placement in zip(weights, (Partial(), Shard(0)), strict=True):
        weight.grad = DTensor.from_local(torch.full((1,), 4.0, device=ctx.device), mesh, [placement])
    nn.utils.clip_grad_norm_(weights, 1.0)
    return bool((summed(gradient_of(weights[0])) < 4.0).all())


def train(
    ctx: Context,
    *,
    norm: Norm,
    given: Sequence[Given],
    rate: float,
    parallel: Callable[[Block, DeviceMesh], Block] = sequence_parallel,
    p: float = 0.0,
    max_norm: float = math.inf,
) -> Step[Tensors]:
    """A step of SGD; it returns the output and input gradient of this rank's tokens, and what it holds of the others.

    Args:
        ctx: the rank's context.
        norm: which one.
        given: to each step in turn: the whole block's parameters, input, and gradient of the output.
        rate: the learning rate.
        parallel: splits the block.
        p: how likely dropout is.
        max_norm: of all gradients together; what is returned of them is clipped.
    """
    block = parallel(_block(ctx, norm, given[0].parameters, p), _mesh(ctx))
    optimizer = torch.optim.SGD(block.parameters(), lr=rate)
    steps = itertools.cycle(given)

    def step() -> Tensors:
        now = next(steps)
        overwrite(block, now.parameters)
        x, output_gradient = (
            tokens_of(tensor, ctx.world_size)[ctx.rank].to(ctx.device) for tensor in (now.x, now.grad)
        )
        x = x.clone().requires_grad_()
        optimizer.zero_grad()
        output = block(x)
        output.backward(output_gradient)
        total = nn.utils.clip_grad_norm_(block.parameters(), max_norm)
        assert isinstance(total, DTensor)
        gradients = {f"{name} gradient": summed(gradient_of(value)) for name, value in block.named_parameters()}
        optimizer.step()
        parameters = {name: local_tensor(value) for name, value in block.named_parameters()}
        results = {"output": output.detach().clone(), "input gradient": gradient_of(x)}
        return results | {"norm": total.full_tensor().detach().clone()} | gradients | parameters

    return step


def collectives(
    ctx: Context,
    *,
    norm: Norm,
    parameters: Tensors,
    x: torch.Tensor,
    grad: torch.Tensor,
    parallel: Callable[[Block, DeviceMesh], Block],
) -> list[tuple[dict[str, int], int]]:
    """How often forward and backward issue each collective, and the bytes that a rank then sends.

    Args:
        ctx: the rank's context.
        norm: which one.
        parameters: the whole block's.
        x: what the rank's block is given: of sequence parallelism its tokens, of tensor parallelism all.
        grad: the gradient of what it returns.
        parallel: splits the block.
    """
    block = parallel(_block(ctx, norm, parameters), _mesh(ctx))
    x = x.to(ctx.device).requires_grad_()
    with Traffic() as forward:
        output = block(x)
    with Traffic() as backward:
        output.backward(grad.to(ctx.device))
    return [
        (Counter(call.name for call in calls), sum(ring_bytes(calls, ctx.world_size).values()))
        for calls in (forward.calls, backward.calls)
    ]


def dropout(ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, p: float) -> Step[Tensors]:
    """Dropout of this rank's tokens; the step returns their output and gradient."""
    layer = parallelize_module(nn.Dropout(p), _mesh(ctx), SequenceParallel(use_local_output=True))
    return _dropped(ctx, layer, x, grad)


def _dropped(ctx: Context, layer: nn.Module, x: torch.Tensor, grad: torch.Tensor) -> Step[Tensors]:
    mine = tokens_of(x, ctx.world_size)[ctx.rank].to(ctx.device).requires_grad_()
    output_gradient = tokens_of(grad, ctx.world_size)[ctx.rank].to(ctx.device)

    def step() -> Tensors:
        output = layer(mine)
        (input_gradient,) = torch.autograd.grad(output, mine, output_gradient)
        return {"output": output.detach(), "input gradient": input_gradient}

    return step
