"""The loss that is meant where ranks have other numbers of valid rows."""

from __future__ import annotations

import torch
from torch.func import functional_call
from torch.nn import functional

from suites.shared.course import IGNORED, Course, Loss
from suites.shared.step import Tensors


def valid_cross_entropy(course: Course, degree: int) -> Loss:
    """The mean over the valid rows of all ranks."""

    def loss(parameters: Tensors, step: int) -> torch.Tensor:
        batches = [course.batch(rank, step) for rank in range(degree)]
        x, classes = (torch.cat(part) for part in zip(*batches, strict=True))
        output: torch.Tensor = functional_call(course.network(), parameters, (x,))
        return functional.cross_entropy(output[classes != IGNORED], classes[classes != IGNORED])

    return loss
