"""A model that is cut into stages, and what the whole of it computes in a step of training.

Inputs, weights and targets are whole numbers, means are over powers of two: nothing is rounded, so that no order
of the additions, and no cut into microbatches, changes a bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.nn import functional

from suites.pipeline_parallel.programs.stages import SINGLE, Layers
from suites.shared.comparison import Results, assert_close
from suites.shared.inputs import integers
from suites.shared.step import Tensors

DTYPE = torch.float64


class Case(NamedTuple):
    """A model, a batch, and how it is cut."""

    schedule: str
    stages: list[Layers]
    x: torch.Tensor
    target: torch.Tensor
    microbatches: int
    reduction: str

    @property
    def arguments(self) -> dict[str, Any]:
        """For ``training.train``."""
        return self._asdict()


def case(schedule: str, widths: list[list[int]], microbatches: int, microbatch: int, reduction: str, seed: int) -> Case:
    """A case of the stages whose layers have the widths; the first number of all is the input's."""
    generator = torch.Generator().manual_seed(seed)
    stages: list[Layers] = []
    (width,), *others = widths
    first = width
    for stage in others:
        layers: Layers = []
        for outputs in stage:
            signs = torch.randint(2, (outputs, width + 1), generator=generator).to(DTYPE) * 2 - 1
            layers.append((signs[:, 1:].contiguous(), signs[:, 0].contiguous()))
            width = outputs
        stages.append(layers)
    batch = microbatches * microbatch
    x = integers((batch, first), DTYPE, seed=seed, low=-3, high=3)
    target = integers((batch, width), DTYPE, seed=seed + 1, low=-3, high=3)
    return Case(schedule, stages, x, target, microbatches, reduction)


def fixed(
    schedule: str, ranks: int, *, reduction: str = "mean", microbatches: int | None = None, microbatch: int = 2
) -> Case:
    """A case of every schedule, in which everything is a power of two if the number of ranks is."""
    stages = ranks if schedule in SINGLE else 2 * ranks
    return case(schedule, [[2], *[[2]] * stages], microbatches or 2 * ranks, microbatch, reduction, seed=1)


def magnitude(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, -x)


def whole_model(given_case: Case, learning_rate: float = 1.0) -> Tensors:
    """The whole model's step over the whole batch, by another way than the programs': no module, no optimizer."""
    leaves: Tensors = {}
    hidden = given_case.x
    for index, layers in enumerate(given_case.stages):
        # Every layer is followed by its magnitude: they have the even places.
        for place, (weight, bias) in enumerate(layers):
            names = f"stage {index}.{2 * place}.weight", f"stage {index}.{2 * place}.bias"
            weight, bias = (value.clone().requires_grad_() for value in (weight, bias))
            leaves |= dict(zip(names, (weight, bias), strict=True))
            hidden = magnitude(functional.linear(hidden, weight, bias))
    linear = given_case.reduction == "linear"
    errors = hidden * given_case.target if linear else (hidden - given_case.target) ** 2
    losses = torch.stack([chunk.sum() for chunk in errors.chunk(given_case.microbatches)])
    loss = losses.sum()
    if given_case.reduction == "mean":
        losses = losses * given_case.microbatches / errors.numel()
        loss = losses.mean()
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    results = {f"{name} gradient": gradient for name, gradient in zip(leaves, gradients, strict=True)}
    results |= {name: leaves[name] - learning_rate * results[f"{name} gradient"] for name in leaves}
    return {name: tensor.detach() for name, tensor in {**results, "output": hidden, "losses": losses}.items()}


def assert_trained_once(got: Results, expected: Tensors) -> None:
    """What each rank holds is the whole model's; each stage is trained by one rank, no more, no less."""
    for rank, results in enumerate(got):
        for name, tensor in results.items():
            assert_close(tensor, expected[name], f"rank {rank}, {name}")
    assert sorted(name for results in got for name in results) == sorted(expected)
