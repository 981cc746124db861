"""Blocks one after the other, with and without sequence parallelism: their steps, and what they keep for backward.

L blocks of width W and H hidden features, T tokens in all, R ranks. A rank is given its own T / R tokens, or all T;
every rank draws the same weights and the same tokens.

A model of its own: what is checked elsewhere is small and returns everything, and this one fills a GPU and returns one
small number, so that nothing else is timed. ``test_racing.py`` compares each way with one device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from pytest_gpuperf import Context, Infeasible
from suites.sequence_parallel.programs.block import (
    Block,
    Norm,
    sequence_parallel,
    summed,
    tensor_parallel,
    tokens_of,
)
from suites.shared.step import Step, Tensors, excerpt, gradient_of

Parallel = Callable[[Block, DeviceMesh], Block]

PLANS: Mapping[str, Parallel] = {"tensor": tensor_parallel, "sequence": sequence_parallel}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of the blocks and of what they are given."""

    layers: int
    width: int
    hidden: int
    sequences: int
    length: int
    """Tokens of a sequence."""
    norm: Norm
    dtype: torch.dtype

    @property
    def tokens(self) -> int:
        """The number of tokens of all sequences."""
        return self.sequences * self.length

    @property
    def flop(self) -> float:
        """Floating-point operations of forward and backward on all ranks together.

        They are three times two products of each token and matrix.
        """
        return 3.0 * self.layers * 2 * 2 * self.tokens * self.width * self.hidden

    def kept(self, plan: str, ranks: int) -> int:
        """Bytes that autograd keeps on a rank for backward, apart from the parameters.

        A block keeps its input and one number a token for its norm (LayerNorm two, its mean as well), the input of the
        first matrix, and tanh's output, of which a rank has H / R features. With sequence parallelism the block's input
        and the norm's numbers are those of T / R tokens. torch keeps the matrix's input as it is after the all-gather,
        that of all T tokens.
        """
        share = ranks if plan == "sequence" else 1
        # A norm of 16-bit numbers keeps float32.
        of_norm = (2 if self.norm == "layer" else 1) * torch.promote_types(self.dtype, torch.float32).itemsize
        inputs = self.tokens // share * (self.width * self.dtype.itemsize + of_norm)
        return self.layers * (inputs + self.tokens * (self.width + self.hidden // ranks) * self.dtype.itemsize)

    def least_kept(self, ranks: int) -> int:
        """Bytes kept on a rank as Korthikanti et al. (arXiv 2205.05198, section 4.2.2) have it: all divided by R.

        They keep the shard of the first matrix's input, and gather it again in backward.
        """
        return self.kept("tensor", 1) // ranks


def drawn(sizes: Sizes, seed: int, device: torch.device) -> tuple[list[Tensors], torch.Tensor, torch.Tensor]:
    """Each block's parameters, the input of all tokens, and the gradient of the output; the same on all ranks.

    Scaled so that activations and the gradients of the parameters are near 1.
    """
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(shape, dtype=sizes.dtype, device=device, generator=generator).mul_(scale)

    blocks = []
    for _ in range(sizes.layers):
        parameters = {"norm.weight": normal(sizes.width, scale=0.25) + 1}
        if sizes.norm == "layer":
            parameters["norm.bias"] = normal(sizes.width, scale=0.25)
        parameters["up.weight"] = normal(sizes.hidden, sizes.width, scale=sizes.width**-0.5)
        parameters["down.weight"] = normal(sizes.width, sizes.hidden, scale=sizes.hidden**-0.5)
        blocks.append(parameters)
    shape = (sizes.sequences, sizes.length, sizes.width)
    return blocks, normal(*shape), normal(*shape, scale=sizes.tokens**-0.5)


def stack(ctx: Context, sizes: Sizes, plan: str, blocks: list[Tensors]) -> nn.Sequential:
    """The blocks, each split over all ranks.

    Raises:
        Infeasible: the ranks do not divide the hidden features or the sequence.
    """
    for what, number in {"hidden features": sizes.hidden, "tokens of a sequence": sizes.length}.items():
        if number % ctx.world_size:
            raise Infeasible(f"{number} {what} make no {ctx.world_size} equal parts")
    modules = []
    for parameters in blocks:
        block = Block(sizes.norm, sizes.width, sizes.hidden, p=0.0, dtype=sizes.dtype, device=ctx.device)
        block.load_state_dict(parameters)
        modules.append(PLANS[plan](block, ctx.mesh((ctx.world_size,))))
    return nn.Sequential(*modules)


def given(ctx: Context, plan: str, tensor: torch.Tensor) -> torch.Tensor:
    """What a rank is given of what all tokens have: a copy of its own tokens' part, or all of it."""
    return tokens_of(tensor, ctx.world_size)[ctx.rank].clone() if plan == "sequence" else tensor


def forward_backward(ctx: Context, *, plan: str, sizes: Sizes, seed: int) -> Step[Tensors]:
    """A step of training without its optimizer; returns an excerpt of what both plans have on this rank.

    That is the output and the input's gradient of its tokens, and the gradients of the last block's parameters.

    Args:
        ctx: the rank's context.
        plan: a key of ``PLANS``.
        sizes: of the blocks.
        seed: of weights and tokens.
    """
    blocks, x, grad = drawn(sizes, seed, ctx.device)
    model = stack(ctx, sizes, plan, blocks)
    del blocks  # whole matrices, of which a rank keeps its shards
    x, grad = (given(ctx, plan, tensor) for tensor in (x, grad))
    x.requires_grad_()

    def mine(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if plan == "sequence" else tokens_of(tensor, ctx.world_size)[ctx.rank]

    def step() -> Tensors:
        model.zero_grad(set_to_none=True)
        x.grad = None
        output = model(x)
        output.backward(grad)
        # With sequence parallelism a norm's gradient is a sum over the ranks, which an optimizer would take.
        gradients = {name: summed(gradient_of(value)) for name, value in model.named_parameters() if "norm" in name}
        matrices = {name: gradient_of(value) for name, value in model[-1].named_parameters() if "norm" not in name}
        local = {name: value.to_local() if isinstance(value, DTensor) else value for name, value in matrices.items()}
        return excerpt({"output": mine(output), "input gradient": mine(gradient_of(x)), **gradients, **local})

    return step


def kept_for_backward(ctx: Context, *, plan: str, sizes: Sizes, seed: int) -> int:
    """Bytes that autograd keeps on this rank after a forward, apart from the parameters."""
    blocks, x, _ = drawn(sizes, seed, ctx.device)
    model = stack(ctx, sizes, plan, blocks)
    x = given(ctx, plan, x).requires_grad_()
    known = {local(value).untyped_storage().data_ptr() for value in model.parameters()}
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = local(tensor).untyped_storage()
        if storage.data_ptr() not in known:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor  # kept, so that no other tensor gets its address

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(x)
    found = sum(storages.values())
    del output
    return found


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What the rank has of a DTensor, when it has arrived; another tensor as it is."""
    held = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    wait = getattr(held, "wait", None)  # of what a functional collective gives back
    return wait() if wait is not None else held
