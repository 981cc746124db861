"""What is trained and on what: whole numbers, so that nothing is rounded. Three kinds of data parallelism train it.

R ranks, B rows of input, I inputs, H hidden features, O outputs. The network is ``x @ S.T`` plus a layer, ReLU and
a layer. A rank's loss is ``(output * grad).sum()``, the loss of all is the mean over the ranks. Weights, inputs and
output gradients are small whole numbers, output gradients multiples of R; the momentum is 1, and the learning rate 1 or
2, another one in each step. All that training computes is then whole too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from suites.shared.inputs import integers
from suites.shared.step import Tensors

Batch = tuple[torch.Tensor, torch.Tensor]

LARGEST = 2  # magnitude of weights, inputs and, before they are multiplied, output gradients
MAX_FEATURES, MAX_ROWS, MAX_MICROBATCHES, MAX_STEPS = 4, 2, 3, 3  # of worlds of up to 4 ranks

# Why float64 holds every number, sums over R ranks included. W: a bound of the weights at some step; m: what output
# gradients are multiplied by; B: rows of a step on a rank. B * m is at most 6 * 4; 2 * 12 (uneven batches, m = 12);
# 4 * 16 (means of means, m = R**2). Hidden features are at most 4 * 2W + W = 9W, outputs 4 * 9W * W + 9W. The second
# layer's gradients are at most B * 2m * 9W = 1152W, the first one's B * (4 * 2mW) * 2 = 1024W. W is 2 at first; with
# momentum 1 and the rates of RATES it grows to 2306, 2**23 and 2**34. What the third step multiplies is 2**23: its
# outputs are below 36 * 2**46 + 9 * 2**23 < 2**52. float32 holds whole numbers up to 2**24: the first step's are below
# 4 * 2306, the second step's outputs may be above 36 * 2306**2 > 2**24.
MAX_STEPS_IN = {torch.float64: MAX_STEPS, torch.float32: 1}

# Wide output gradients are 2**k times as large, and need all of these bits: gradients of few bits stay right in a lower
# precision. Of one step: gradients are below 4 * 1152 * 2**k, and weights after it. Without hidden layers they do not
# depend on weights, and no number is above 2**14 * 2**k. Of two steps with hidden layers: W is below 2**(12 + k) then,
# outputs below 36 * W**2 = 2**(30 + 2k), gradients below 2**(22 + 2k), weights below 2**(24 + 2k) after twice their
# sum. float64 holds 2**53, float32 2**24.
WIDE_BITS = {torch.float64: 38, torch.float32: 10}
WIDE_BITS_OF_TWO_STEPS = 11  # in float64, with hidden layers; the third step's numbers are wide by themselves

RATES = (1.0, 2.0, 1.0)
"""The learning rate of each step: whoever does not hear of a change trains on with the rate before."""

ADAM = {"lr": 1.0, "betas": (0.5, 0.75), "eps": 2.0**-10}  # dyadic: neither they nor 1 - beta**t are rounded


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A network, what each rank trains it on, and how."""

    world_size: int
    seed: int
    inputs: int = 3
    hidden: int = 4
    """0: the network has no such layers, and its gradients do not depend on its parameters."""
    outputs: int = 2
    rows: int = 2
    """Rows of a microbatch, on each rank."""
    microbatches: int = 1
    """Microbatches of a step; their gradients are added."""
    steps: int = 2
    dtype: torch.dtype = torch.float64
    optimizer: str = "sgd"
    """``sgd`` (with momentum 1) or ``adam``."""
    multiple: int | None = None
    """The number of which the output gradients are multiples; R by default, so that the mean over ranks is whole."""
    wide: bool = False
    """Whether gradients need more bits than a lower precision has; for ``sgd`` alone."""

    def __post_init__(self) -> None:
        if self.optimizer == "adam" and self.hidden and self.steps > 1:
            raise ValueError(
                "Adam rounds, and gradients of hidden layers would depend on it: hidden=0 or steps=1, "
                f"got hidden={self.hidden}, steps={self.steps}"
            )

    def parameters(self, rank: int = 0) -> Tensors:
        """The initial ones; ranks other than 0 start with others, which rank 0's should replace."""
        shapes: dict[str, tuple[int, ...]] = {"shortcut.weight": (self.outputs, self.inputs)}
        if self.hidden:
            shapes |= {
                "first.weight": (self.hidden, self.inputs),
                "first.bias": (self.hidden,),
                "second.weight": (self.outputs, self.hidden),
                "second.bias": (self.outputs,),
            }
        # All in one draw, and then cut: a draw of few numbers costs as much as one of many.
        sizes = [math.prod(shape) for shape in shapes.values()]
        drawn = self._draw((sum(sizes),), self.seed * 1024 + rank).split(sizes)
        return {name: flat.view(shape).clone() for (name, shape), flat in zip(shapes.items(), drawn, strict=True)}

    def batches(self, rank: int) -> list[Batch]:
        """The rank's inputs of each step and the gradients of its outputs, (microbatches, rows, features)."""
        seed = self.seed * 1024 + 512 + rank * 2
        multiple = self.world_size if self.multiple is None else self.multiple
        shape = (self.steps, self.microbatches, self.rows)
        x = self._draw((*shape, self.inputs), seed)
        largest = LARGEST * 2**self._wide_bits
        grad = multiple * integers((*shape, self.outputs), self.dtype, seed=seed + 1, low=-largest, high=largest)
        return list(zip(x, grad, strict=True))

    def rate(self, step: int) -> float:
        """The learning rate of a step, the first one's number is 0; with the last step's batch rates begin anew."""
        return RATES[step % self.steps]

    @property
    def _wide_bits(self) -> int:
        if not self.wide or self.optimizer == "adam":
            return 0
        if self.hidden and self.steps > 1:
            return WIDE_BITS_OF_TWO_STEPS if self.steps == 2 else 0
        return WIDE_BITS[self.dtype]

    def _draw(self, shape: tuple[int, ...], seed: int) -> torch.Tensor:
        return integers(shape, self.dtype, seed=seed, low=-LARGEST, high=LARGEST)


class Network(nn.Module):
    """The problem's network with these parameters; ``skip`` leaves the shortcut unused."""

    def __init__(self, parameters: Tensors, *, skip: bool = False) -> None:
        super().__init__()
        self.shortcut = _Linear(parameters, "shortcut")
        self.first = _Linear(parameters, "first") if "first.weight" in parameters else None
        self.second = _Linear(parameters, "second") if "second.weight" in parameters else None
        self._skip = skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs for a batch of inputs."""
        outputs = []
        if not self._skip:
            outputs.append(self.shortcut(x))
        if self.first is not None and self.second is not None:
            outputs.append(self.second(functional.relu(self.first(x))))
        return torch.stack(outputs).sum(0) if len(outputs) > 1 else outputs[0]


class _Linear(nn.Module):
    """nn.Linear without its random initialization, which would take longer than all of a step here."""

    def __init__(self, parameters: Tensors, prefix: str) -> None:
        super().__init__()
        # Copies: two networks made of the same parameters shall not train each other's.
        self.weight = nn.Parameter(parameters[f"{prefix}.weight"].clone())
        bias = parameters.get(f"{prefix}.bias")
        self.bias = None if bias is None else nn.Parameter(bias.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias)


def optimizer_for(
    problem: Problem, parameters: Iterable[torch.Tensor], *, foreach: bool | None = None
) -> torch.optim.Optimizer:
    """The problem's optimizer over these parameters; ``foreach`` as torch.optim has it."""
    kind, arguments = optimizer_class(problem)
    optimizer: torch.optim.Optimizer = kind(parameters, foreach=foreach, **arguments)
    return optimizer


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Sets the learning rate of the next step, as a schedule does: in the groups that the optimizer shows."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def optimizer_class(problem: Problem) -> tuple[type[Any], dict[str, Any]]:
    """The problem's optimizer, and what its constructor takes besides parameters."""
    if problem.optimizer == "adam":
        return torch.optim.Adam, dict(ADAM)
    return torch.optim.SGD, {"lr": 1.0, "momentum": 1.0}
