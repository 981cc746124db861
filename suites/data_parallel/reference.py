"""The loss that is meant where ranks have other numbers of valid rows, and the gradients of all ranks' rows."""

from __future__ import annotations

import torch
from torch.func import functional_call
from torch.nn import functional

from pytest_gpuperf import Context
from suites.data_parallel.programs import racing
from suites.shared.course import IGNORED, Course, Loss
from suites.shared.excerpt import excerpt
from suites.shared.step import Tensors


def valid_cross_entropy(course: Course, degree: int) -> Loss:
    """The mean over the valid rows of all ranks."""

    def loss(parameters: Tensors, step: int) -> torch.Tensor:
        batches = [course.batch(rank, step) for rank in range(degree)]
        x, classes = (torch.cat(part) for part in zip(*batches, strict=True))
        output: torch.Tensor = functional_call(course.network(), parameters, (x,))
        return functional.cross_entropy(output[classes != IGNORED], classes[classes != IGNORED])

    return loss


def mean_gradients(ctx: Context, sizes: racing.Sizes, seed: int, step: int) -> Tensors:
    """The excerpt of what one device has of all ranks' rows, in a step from 1 on; from the weights alone."""
    module = racing.perceptron(sizes, seed, ctx.device)
    weights = [weight.detach().clone().requires_grad_() for weight in module.parameters()]
    batches = [racing.batch_of(ctx, sizes, rank, (step - 1) % racing.BATCHES) for rank in range(ctx.world_size)]
    output = torch.cat(batches).to(ctx.device)
    for weight in weights[:-1]:
        output = (output @ weight.T).clamp(min=0)
    gradients = torch.autograd.grad(mean_square_of_rows(output @ weights[-1].T), weights)
    return excerpt({f"layer {index}": gradients[index] for index in (0, len(weights) // 2, len(weights) - 1)})


def mean_square_of_rows(output: torch.Tensor) -> torch.Tensor:
    """The mean square of the rows' distances from targets between -1 and 1, one for each output."""
    last = output.shape[-1] - 1
    target = torch.tensor([-1 + 2 * place / last for place in range(last + 1)], dtype=torch.float64)
    return (output - target.to(output)).square().mean()
