"""What one device makes of the blocks that are raced: no split, no collective."""

from __future__ import annotations

import torch
from torch.nn import functional

from pytest_gpuperf import Context
from suites.sequence_parallel.programs.block import EPS, tokens_of
from suites.sequence_parallel.programs.racing import Sizes, drawn
from suites.shared.sharding import shard
from suites.shared.step import Tensors, excerpt


def one_device(ctx: Context, sizes: Sizes, seed: int) -> Tensors:
    """What this rank should return, from blocks with LayerNorm on its device with all tokens."""
    blocks, x, grad = drawn(sizes, seed, ctx.device)
    leaves = [x, *(value for parameters in blocks for value in parameters.values())]
    for leaf in leaves:
        leaf.requires_grad_()
    output = x
    for parameters in blocks:
        normal = functional.layer_norm(output, (sizes.width,), parameters["norm.weight"], parameters["norm.bias"], EPS)
        output = output + (normal @ parameters["up.weight"].T).tanh() @ parameters["down.weight"].T
    input_gradient, *found = torch.autograd.grad(output, leaves, grad)
    coming = iter(found)
    gradients = [{name: next(coming) for name in parameters} for parameters in blocks]
    expected = {
        name: tokens_of(value, ctx.world_size)[ctx.rank]
        for name, value in {"output": output, "input gradient": input_gradient}.items()
    }
    for number, of_block in enumerate(gradients):
        expected |= {f"{number}.{name}": value for name, value in of_block.items() if "norm" in name}
    for name, dim in {"up.weight": 0, "down.weight": 1}.items():
        expected[name] = shard(gradients[-1][name], ctx.world_size, dim)[ctx.rank]
    return excerpt(expected)
