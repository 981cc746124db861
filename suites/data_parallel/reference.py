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
    """The excerpt of what one device has of all ranks' rows, one rank's after the other, in a step from 1 on."""
    module = racing.perceptron(sizes, seed, ctx.device)
    for rank in range(ctx.world_size):
        x = racing.batch_of(ctx, sizes, rank, (step - 1) % racing.BATCHES).to(ctx.device)
        (racing.loss_of_rows(module(x)) / ctx.world_size).backward()
    return excerpt(racing.weights_of(module))
