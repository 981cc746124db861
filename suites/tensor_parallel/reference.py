"""What layers are given, and what the whole layer gives.

Inputs, weights and output gradients are whole numbers in float64. Every sum and product then stays a whole
number far below 2**53, so that no order of the additions, and no split of them over ranks, rounds anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch.nn import functional

from suites.shared.comparison import assert_same
from suites.shared.inputs import Given, full_width, integers
from suites.shared.references import by_autograd
from suites.shared.sharding import per_rank
from suites.shared.step import Tensors

DTYPE = torch.float64
Factor = Literal["weight", "x", "grad"]

# Nothing is rounded, and comparisons are exact: see above. The largest number is an output of the MLP, of 8 hidden
# features and 5 inputs of at most 15 each: (15 * 15 * 5 + 60) * 15 * 8 + 60 < 2**18.


def parameters(*shapes: tuple[str, int, int], degree: int, bias: bool, seed: int) -> Tensors:
    """A weight for each (prefix, outputs, inputs), and a bias if asked for.

    A row-parallel layer adds a share of its bias, bias / R, on each rank: multiples of R have whole shares.
    """
    drawn = {}
    for index, (prefix, outputs, inputs) in enumerate(shapes):
        drawn[f"{prefix}weight"] = integers((outputs, inputs), DTYPE, seed=seed * 16 + 2 * index)
        if bias:
            drawn[f"{prefix}bias"] = degree * integers((outputs,), DTYPE, seed=seed * 16 + 2 * index + 1)
    return drawn


def x_and_grad(batch: tuple[int, ...], inputs: int, outputs: int, seed: int) -> Tensors:
    """The input and the gradient of the output, the same for all ranks."""
    return {
        "x": integers((*batch, inputs), DTYPE, seed=seed * 16 + 14),
        "grad": integers((*batch, outputs), DTYPE, seed=seed * 16 + 15),
    }


WIDE: tuple[Factor, ...] = ("weight", "x", "grad")
"""The factors of a layer's products: outputs are weight times x, gradients weight times grad and grad times x."""


def all_wide(parameters: Tensors, seed: int, *, x: torch.Tensor, grad: torch.Tensor) -> list[Given]:
    """Three steps with nothing in common, of which each has one factor with numbers of all bits.

    So every output and every gradient has them in two of the three, and no sum is rounded: products and sums make the
    largest at most 2**14 times as large in layers of this size, see above.
    """
    steps = []
    for number, wide in enumerate(WIDE):
        factors = {name: value.roll(number + 1, -1) for name, value in {"x": x, "grad": grad, **parameters}.items()}
        # Of two layers the first one's: both would multiply.
        name = wide if wide != "weight" else next(name for name in parameters if name.endswith("weight"))
        factors[name] = full_width(tuple(factors[name].shape), DTYPE, seed=seed * 4 + number, addends=2**14)
        steps.append(Given({name: factors[name] for name in parameters}, factors["x"], factors["grad"]))
    return steps


def linear(leaves: Tensors, prefix: str = "") -> torch.Tensor:
    """The formula of the layer whose parameters have this prefix."""
    return functional.linear(leaves["input"], leaves[f"{prefix}weight"], leaves.get(f"{prefix}bias"))


def whole_layer(layer: Callable[[Tensors], torch.Tensor], given: Given) -> Tensors:
    """The output of the layer with this formula, and the gradients of its input and of its parameters."""
    return by_autograd(layer, {"input": given.x, **given.parameters}, given.grad)


def assert_steps(
    results: Sequence[Sequence[Tensors]],
    given: Sequence[Given],
    layer: Callable[[Tensors], torch.Tensor],
    dims: Mapping[str, int],
    atol: float = 0.0,
) -> None:
    """Each step of each rank is the whole layer's, split along these dimensions."""
    for now, got in zip(given, zip(*results, strict=True), strict=True):
        assert_same(got, per_rank(whole_layer(layer, now), len(results), dims), atol)
