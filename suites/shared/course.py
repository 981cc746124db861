"""A short training with what real ones do besides: rows that differ by rank and step, and a reference for it.

The network has one hidden layer, in float64: results that differ by the order of additions are off by some 1e-16 of
their size, and a bound of 1e-12 sees all else. If the last layer is in float32, they are off by some 1e-7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call

from suites.shared.comparison import assert_each
from suites.shared.step import Tensors

FEATURES, HIDDEN, CLASSES = 5, 7, 3
LR = 0.125
MAX_NORM = 0.25
BEYOND = 2.0**20
"""A norm that no gradients reach: nothing is clipped then."""
OVERFLOWS = (1, 1)
"""The step and the rank whose gradients are infinite."""
SCALE = 2.0**10
"""That a gradient scaler begins with; an overflow halves it."""
IGNORED = -100
BARE = (1, 0)
"""The step and the rank that have no valid row, if one has none."""
ROUNDING = 1e-12
ROUNDING_OF_NARROW = 1e-5


class _Narrow(nn.Linear):
    """A layer of float32 in a network of float64."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(self.weight.dtype))


@dataclass(frozen=True, slots=True)
class Course:
    """How long training takes, of how many rows on each rank, and from which seed."""

    seed: int
    steps: int = 3
    rows: int = 4
    narrow: bool = False
    """Whether the last layer is in float32, so that gradients have two dtypes."""
    bare: bool = False
    """Whether a rank has no valid row at a step: see ``BARE``."""

    @property
    def rounding(self) -> float:
        """How far results may be off, as a share of their size and in units."""
        return ROUNDING_OF_NARROW if self.narrow else ROUNDING

    def network(self) -> nn.Sequential:
        """The network that every rank starts with, on the CPU."""
        generator = torch.Generator().manual_seed(self.seed)
        network = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)).double()
        if self.narrow:
            network[2] = _Narrow(HIDDEN, CLASSES)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        return network

    def batch(self, rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of a rank, and their classes, some of which are ignored: as many as the rank's number and the step."""
        generator = torch.Generator().manual_seed((self.seed * 16 + step) * 16 + rank + 1)
        x = torch.randn(self.rows, FEATURES, generator=generator, dtype=torch.float64)
        classes = torch.randint(CLASSES, (self.rows,), generator=generator)
        bare = self.bare and (step, rank) == BARE
        classes[: self.rows if bare else (rank + step) % self.rows] = IGNORED
        return x, classes


Loss = Callable[[Tensors, int], torch.Tensor]
"""The loss of all ranks, from the parameters and the number of the step."""
Change = Callable[[Tensors, int], Tensors | None]
"""Gradients as the optimizer gets them at a step; None: it takes none."""


def trained_course(
    course: Course, loss: Loss, change: Change = lambda gradients, step: gradients, momentum: float = 0.0
) -> Tensors:
    """Gradients and parameters after each step on one device, by step and name; SGD written out."""
    parameters = {name: value.detach().clone() for name, value in course.network().named_parameters()}
    velocity = {name: torch.zeros_like(value) for name, value in parameters.items()}
    told: Tensors = {}
    for step in range(course.steps):
        leaves = {name: value.requires_grad_() for name, value in parameters.items()}
        found = torch.autograd.grad(loss(leaves, step), list(leaves.values()))
        gradients = change(dict(zip(leaves, found, strict=True)), step)
        parameters = {name: value.detach() for name, value in leaves.items()}
        if gradients is not None:
            velocity = {name: momentum * velocity[name] + gradient for name, gradient in gradients.items()}
            parameters = {name: value - LR * velocity[name] for name, value in parameters.items()}
            told |= {f"step {step}, {name} gradient": gradient for name, gradient in gradients.items()}
        told |= {f"step {step}, {name}": value for name, value in parameters.items()}
    return told


def mean_square(course: Course, degree: int) -> Loss:
    """The mean over all ranks' outputs of their squares."""

    def loss(parameters: Tensors, step: int) -> torch.Tensor:
        x = torch.cat([course.batch(rank, step)[0] for rank in range(degree)])
        output: torch.Tensor = functional_call(course.network(), parameters, (x,))
        return output.square().mean()

    return loss


def _norm(gradients: Tensors) -> torch.Tensor:
    """The norm of all gradients together."""
    return torch.cat([gradient.flatten() for gradient in gradients.values()]).square().sum().sqrt()


def _clip(gradients: Tensors, most: float) -> Tensors:
    """Pascanu et al., arXiv:1211.5063, algorithm 1; torch adds 1e-6 to the norm."""
    factor = (most / (_norm(gradients) + 1e-6)).clamp(max=1.0)
    return {name: gradient * factor for name, gradient in gradients.items()}


def clipped_course(course: Course, degree: int, max_norm: float = MAX_NORM) -> Tensors:
    """The course with gradients clipped to ``MAX_NORM`` or a norm that none reaches, and the norm of each step before.

    Raises:
        AssertionError: in some step nothing is clipped, or something that should not be.
    """
    norms: Tensors = {}

    def clipped(gradients: Tensors, step: int) -> Tensors:
        norms[f"step {step}, norm"] = _norm(gradients)
        return _clip(gradients, max_norm)

    told = trained_course(course, mean_square(course, degree), clipped)
    assert all((norm > max_norm) == (max_norm == MAX_NORM) for norm in norms.values()), norms
    return told | norms


def clipped_value_course(course: Course, degree: int, most: float, norm_types: Sequence[float]) -> Tensors:
    """The course with each element of a gradient at most ``most``, and norms of the gradients of each step before.

    Raises:
        AssertionError: in some step nothing is clipped on one side.
    """
    norms: Tensors = {}

    def clipped(gradients: Tensors, step: int) -> Tensors:
        flat = torch.cat([gradient.flatten() for gradient in gradients.values()])
        assert flat.min() < -most, f"step {step}: no element of a gradient is below {-most}"
        assert flat.max() > most, f"step {step}: no element of a gradient is above {most}"
        for norm_type in norm_types:
            norms[f"step {step}, {norm_type:g}-norm"] = torch.linalg.vector_norm(flat, norm_type)
        return {name: gradient.clamp(-most, most) for name, gradient in gradients.items()}

    return trained_course(course, mean_square(course, degree), clipped) | norms


def scaled_course(course: Course, degree: int, growth_interval: int = 1000) -> Tensors:
    """Parameters and the scaler's scale after each step; one overflows, is skipped, and halves the scale.

    ``growth_interval`` steps without an overflow double it.
    """

    def clipped_or_skipped(gradients: Tensors, step: int) -> Tensors | None:
        return None if step == OVERFLOWS[0] else _clip(gradients, MAX_NORM)

    told = trained_course(course, mean_square(course, degree), clipped_or_skipped, momentum=0.5)
    scales: Tensors = {}
    scale, well = SCALE, 0
    for step in range(course.steps):
        well = 0 if step == OVERFLOWS[0] else well + 1
        if step == OVERFLOWS[0]:
            scale /= 2
        elif well % growth_interval == 0:
            scale *= 2
        scales[f"step {step}, scale"] = torch.tensor(scale, dtype=torch.float64)
    return {name: value for name, value in told.items() if "gradient" not in name} | scales


def assert_each_has(results: list[Tensors], expected: Tensors, rounding: float = ROUNDING) -> None:
    """All that is expected, within the bound of rounding; a rank may tell more."""
    for name, value in expected.items():
        of_ranks = [result[name].cpu() for result in results]
        assert_each(of_ranks, [value] * len(results), name, rtol=rounding, atol=rounding)
