"""What a rank's step of training returned, beside the chain rule."""

from __future__ import annotations

import torch

from suites.activations import programs
from suites.activations.inputs import EXACT, Arguments

Result = dict[str, torch.Tensor]


def reference(given: Arguments, masks: list[torch.Tensor]) -> Result:
    """By the chain rule, written out: neither autograd nor the suite's module takes part."""
    inputs, hidden = [given["x"]], []
    for index, (first, second) in enumerate(given["weights"]):
        before = inputs[-1] @ first.T
        mask = masks[index] if masks else torch.ones_like(before)
        hidden.append((before, mask))
        inputs.append((before.clamp(min=0) * mask) @ second.T)
    grad = given["grad"]
    gradients: Result = {}
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
            expected[f"{index}.{name} after the step"] = weight - programs.LEARNING_RATE * gradient
    return expected


def assert_same(got: Result, given: Arguments, where: str) -> None:
    """All that a step returned is as expected of the masks that it drew."""
    masks = [got[f"mask {index}"] for index in range(len(given["weights"]))] if given["dropout"] else []
    expected = reference(given, masks)
    named = {*expected, *(f"mask {index}" for index in range(len(masks)))}
    assert set(got) == named, f"{where} has {sorted(got)}, not {sorted(named)}"
    for name, tensor in expected.items():
        assert_close(got[name], tensor, f"{where}, {name}")


def assert_close(got: torch.Tensor, expected: torch.Tensor, where: str) -> None:
    """One tensor is as expected."""
    if not torch.equal(got, expected):  # 20 times as quick, and most are
        torch.testing.assert_close(got, expected, rtol=0, atol=EXACT, msg=lambda text: f"{where}: {text}")
