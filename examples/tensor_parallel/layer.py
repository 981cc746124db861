"""An MLP whose hidden features are split over the ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import gelu, linear


class _SumGradients(torch.autograd.Function):
    """The input is the same on all ranks; its gradient is the sum over the ranks."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class _SumOutputs(torch.autograd.Function):
    """The output is the sum over the ranks; its gradient is the same on all of them."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class ParallelMLP(nn.Module):
    """Computes ``down(gelu(up(x)))``; each rank holds its chunk of the hidden features."""

    def __init__(self, up, down, rank, ranks):
        super().__init__()

        def own(tensor, dim):
            return nn.Parameter(tensor.detach().chunk(ranks, dim)[rank].clone())

        self.up, self.up_bias = own(up.weight, 0), own(up.bias, 0)
        self.down, self.down_bias = own(down.weight, 1), nn.Parameter(down.bias.detach().clone())

    def forward(self, x):
        hidden = gelu(linear(_SumGradients.apply(x), self.up, self.up_bias))
        return _SumOutputs.apply(linear(hidden, self.down)) + self.down_bias
