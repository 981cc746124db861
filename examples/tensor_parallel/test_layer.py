"""The split MLP computes what the whole one computes, forward and backward."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layer import ParallelMLP
from torch import nn


def data(tokens, width, hidden):
    torch.manual_seed(0)
    return nn.Linear(width, hidden), nn.Linear(hidden, width), torch.randn(tokens, width)


@pytest.mark.ranks(2, 4)
@settings(max_examples=5, deadline=None)
@given(tokens=st.integers(1, 5), width=st.integers(1, 8), per_rank=st.integers(1, 4))
def test_the_split_layer_agrees_with_one_device(ranks, tokens, width, per_rank):
    hidden = per_rank * ranks.world_size

    def program(ctx):  # hypothesis draws the sizes in the test, not on the ranks
        up, down, x = data(tokens, width, hidden)
        layer = ParallelMLP(up, down, ctx.rank, ctx.world_size).to(ctx.device)
        x = x.to(ctx.device).requires_grad_()
        y = layer(x)
        y.square().sum().backward()
        return {"y": y, "x": x.grad, "up": layer.up.grad, "down": layer.down.grad, "bias": layer.down_bias.grad}

    up, down, x = data(tokens, width, hidden)
    x.requires_grad_()
    y = down(nn.functional.gelu(up(x)))
    y.square().sum().backward()

    for rank, got in enumerate(ranks.run(program)):
        up_share = up.weight.grad.chunk(ranks.world_size, 0)[rank]
        down_share = down.weight.grad.chunk(ranks.world_size, 1)[rank]
        expected = {"y": y, "x": x.grad, "up": up_share, "down": down_share, "bias": down.bias.grad}
        torch.testing.assert_close(got, {name: tensor.detach() for name, tensor in expected.items()})
