"""What one device has of all ranks' rows: a loss of the valid ones, gradients, and a course with Adam."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.func import functional_call
from torch.nn import functional

from pytest_gpuperf import Context
from suites.data_parallel.programs import racing
from suites.shared.course import IGNORED, Course, Loss, mean_square
from suites.shared.step import Tensors, excerpt


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
    number = (step - 1) % racing.BATCHES
    output = torch.cat([racing.rows_of(ctx, sizes, rank, number) for rank in range(ctx.world_size)])
    for weight in weights[:-1]:
        output = (output @ weight.T).clamp(min=0)
    gradients = torch.autograd.grad(mean_square_of_rows(output @ weights[-1].T), weights)
    return excerpt({f"layer {index}": gradients[index] for index in (0, len(weights) // 2, len(weights) - 1)})


def mean_square_of_rows(output: torch.Tensor) -> torch.Tensor:
    """The mean square of the rows' distances from targets between -1 and 1, one for each output."""
    last = output.shape[-1] - 1
    target = torch.tensor([-1 + 2 * place / last for place in range(last + 1)], dtype=torch.float64)
    return (output - target.to(output)).square().mean()


def adam_course(
    course: Course, degree: int, rates: Sequence[float], *, betas: tuple[float, float], eps: float
) -> Tensors:
    """Loss, gradients and parameters after each step, by step and name.

    Adam (Kingma and Ba, arXiv:1412.6980, algorithm 1) by sums of all gradients so far, not by moments that each step
    updates.
    """
    loss = mean_square(course, degree)
    parameters = {name: value.detach().clone() for name, value in course.network().named_parameters()}
    past: list[Tensors] = []
    told: Tensors = {}
    for number, rate in enumerate(rates):
        leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        found = loss(leaves, number)
        past.append(dict(zip(leaves, torch.autograd.grad(found, list(leaves.values())), strict=True)))

        def moment(name: str, power: int) -> torch.Tensor:
            beta, count = betas[power - 1], len(past)
            terms = [beta ** (count - 1 - when) * one[name] ** power for when, one in enumerate(past)]
            return (1 - beta) * torch.stack(terms).sum(0) / (1 - beta**count)

        parameters = {
            name: value.detach() - rate * moment(name, 1) / (moment(name, 2).sqrt() + eps)
            for name, value in leaves.items()
        }
        named = {"loss": found.detach(), **parameters}
        named |= {f"{name} gradient": gradient for name, gradient in past[-1].items()}
        told |= {f"step {number}, {name}": value for name, value in named.items()}
    return told
