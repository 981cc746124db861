"""What the blocks are given, and what a rank's step of training should return: the chain rule, written out.

Inputs, weights and output gradients are whole numbers in float64: nothing is rounded, and results are equal.
"""

from __future__ import annotations

from typing import Any

import torch

from suites.activations.programs.techniques import LEARNING_RATE
from suites.shared.comparison import assert_close
from suites.shared.inputs import integers
from suites.shared.step import Tensors

DTYPE = torch.float64

# Nothing is rounded, and comparisons are exact: inputs are at most 3, weights 2; with 4 hidden and 3 other features a
# block multiplies an input or a gradient by at most 3 * 2 * 4 * 2 = 48. After 3 blocks both are at most 3 * 48**3 <
# 2**19, and a weight's gradient, the sum over 3 rows of a product of an input and a gradient, is below 2**40. So inputs
# may be larger: by 2**12, and with fewer blocks by more. float32 would not hold what is saved of them; float64 does.
WIDER = {1: 40, 2: 22, 3: 12}
"""By how many bits, for so many blocks."""

Arguments = dict[str, Any]


def arguments(*, blocks: int, rows: int, width: int, hidden: int, dropout: bool, seed: int) -> Arguments:
    """What all ranks are given; each makes its own input and gradient of it in ``own``."""
    weights = [
        (
            integers((hidden, width), DTYPE, seed=seed * 16 + 2 * index, low=-2, high=2),
            integers((width, hidden), DTYPE, seed=seed * 16 + 2 * index + 1, low=-2, high=2),
        )
        for index in range(blocks)
    ]
    return {"weights": weights, "dropout": dropout, **own(0, rows, width, seed, bits=WIDER.get(blocks, 0))}


def own(rank: int, rows: int, width: int, seed: int, *, bits: int) -> Arguments:
    """A rank's input, wider by so many bits, and the gradient of its output."""
    largest = 3 * 2**bits
    x = integers((rows, width), DTYPE, seed=seed * 64 + 2 * rank, low=-largest, high=largest)
    return {"x": x, "grad": integers((rows, width), DTYPE, seed=seed * 64 + 2 * rank + 1, low=-3, high=3)}


def at_step(given: Arguments, number: int) -> Arguments:
    """What a rank is given for a later step."""
    return given | {"x": given["x"] + number, "grad": given["grad"] - number}


def block_reference(given: Arguments, masks: list[torch.Tensor]) -> Tensors:
    """By the chain rule, written out: neither autograd nor the suite's module takes part."""
    inputs, hidden = [given["x"]], []
    for index, (first, second) in enumerate(given["weights"]):
        before = inputs[-1] @ first.T
        mask = masks[index] if masks else torch.ones_like(before)
        hidden.append((before, mask))
        inputs.append((before.clamp(min=0) * mask) @ second.T)
    grad = given["grad"]
    gradients: Tensors = {}
    for index in reversed(range(len(hidden))):
        (first, second), (before, mask) = given["weights"][index], hidden[index]
        gradients[f"{index}.second"] = grad.T @ (before.clamp(min=0) * mask)
        grad = (grad @ second) * mask * (before > 0)
        gradients[f"{index}.first"] = grad.T @ inputs[index]
        grad = grad @ first
    expected = {"output": inputs[-1], "input gradient": grad}
    for index, pair in enumerate(given["weights"]):
        for name, weight in zip(("first", "second"), pair, strict=True):
            gradient = gradients[f"{index}.{name}"]
            expected[f"{index}.{name} gradient"] = gradient
            expected[f"{index}.{name} after the step"] = weight - LEARNING_RATE * gradient
    return expected


def assert_blocks(got: Tensors, given: Arguments, where: str) -> None:
    """All that a step returned is as expected of the masks that it drew."""
    masks = [got[f"mask {index}"] for index in range(len(given["weights"]))] if given["dropout"] else []
    expected = block_reference(given, masks)
    named = {*expected, *(f"mask {index}" for index in range(len(masks)))}
    assert set(got) == named, f"{where} has {sorted(got)}, not {sorted(named)}"
    for name, tensor in expected.items():
        assert_close(got[name], tensor, f"{where}, {name}")
