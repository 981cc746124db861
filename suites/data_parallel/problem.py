"""What is trained, on what, and what comes of it on one device: whole numbers, so that nothing is rounded.

R ranks, B rows of input, I inputs, H hidden features, O outputs. The network is ``x @ S.T`` plus a layer, ReLU and
a layer. A rank's loss is ``(output * grad).sum()``, the loss of all is the mean over the ranks. Weights, inputs and
output gradients are small whole numbers, output gradients multiples of R; learning rate and momentum are 1. All
that training computes is then whole too. The suites of sharded data parallelism and of offloading use it as well.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from suites.data import integers

Parameters = dict[str, torch.Tensor]
Batch = tuple[torch.Tensor, torch.Tensor]
Results = list[dict[str, torch.Tensor]]
"""For each rank what it should compute, by name."""

LARGEST = 2  # magnitude of weights, inputs and, before they are multiplied, output gradients
MAX_FEATURES, MAX_ROWS, MAX_MICROBATCHES, MAX_STEPS = 4, 2, 3, 3  # of worlds of up to 4 ranks

# Why float64 holds every number, sums over R ranks included. W: a bound of the weights at some step; m: what output
# gradients are multiplied by; B: rows of a step on a rank. B * m is at most 6 * 4; 2 * 12 (uneven batches, m = 12);
# 4 * 16 (means of means, m = R**2). Hidden features are at most 4 * 2W + W = 9W, outputs 4 * 9W * W + 9W. The second
# layer's gradients are at most B * 2m * 9W = 1152W, the first one's B * (4 * 2mW) * 2 = 1024W. W is 2 at first; with
# momentum 1 it grows to 2306, 2**22 and 2**32. What the third step multiplies is 2**22: its outputs are below
# 36 * 2**44 + 9 * 2**22 < 2**50. float32 holds whole numbers up to 2**24: the first step's are below 4 * 2306, the
# second step's outputs may be above 36 * 2306**2 > 2**24.
MAX_STEPS_IN = {torch.float64: MAX_STEPS, torch.float32: 1}

ADAM = {"lr": 1.0, "betas": (0.5, 0.75), "eps": 2.0**-10}  # dyadic: neither they nor 1 - beta**t are rounded

# How far Adam's parameters may be apart after T <= 3 steps. Its gradients are exact (H = 0: they depend on no
# parameter), u = 2**-53. Each step rounds exp_avg at most thrice, by u of a sum that is no larger than M, the same sum
# of magnitudes; and exp_avg_sq, v, by at most 3u of itself; hence M is off by 3Tu, v by 3Tu, its root by 1.5Tu. Root,
# two divisions, addition of eps, product: 10u more. M <= sqrt(1.5 v) by Cauchy and Schwarz, as beta1**2 is a third of
# beta2; with the bias corrections 1 - 0.5**t >= 1/2 and 1 - 0.75**t <= 1 no update is above 2.45 lr. An update is thus
# off by 2.45 (4.5T + 10)u < 58u, adding it rounds by u of a parameter that is below 2 + 2.45T < 10. T steps, and once
# each for both that are compared: 2 * 3 * (58 + 10)u. Higham, Accuracy and Stability, sections 2.2 and 3.1.
ADAM_ATOL = 408 * 2.0**-53
# Outputs are sums of 4 parameters, times 2; input gradients of 4 parameters, times 2m = 8. Their own 4 roundings are by
# 32 * 10u at most, in both that are compared.
ADAM_ACTIVATION_ATOL = 32 * ADAM_ATOL + 2 * 4 * 320 * 2.0**-53


@dataclass(frozen=True, slots=True)
class Packed:
    """Tensors by name, those of one dtype in one flat tensor: to pickle dozens of small ones takes milliseconds."""

    shapes: dict[str, tuple[torch.dtype, torch.Size]]
    flat: dict[torch.dtype, torch.Tensor]

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> Packed:
        """Packs these, on the CPU: of offloaded training some are there and some on the device."""
        parts: dict[torch.dtype, list[torch.Tensor]] = {}
        for tensor in tensors.values():
            parts.setdefault(tensor.dtype, []).append(tensor.detach().cpu().flatten())
        shapes = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
        return cls(shapes, {dtype: torch.cat(of_dtype) for dtype, of_dtype in parts.items()})

    def unpacked(self) -> dict[str, torch.Tensor]:
        """The tensors, in their order."""
        places = dict.fromkeys(self.flat, 0)
        tensors = {}
        for name, (dtype, shape) in self.shapes.items():
            numel = shape.numel()
            tensors[name] = self.flat[dtype][places[dtype] : places[dtype] + numel].view(shape)
            places[dtype] += numel
        return tensors


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
    """Of a microbatch, on each rank."""
    microbatches: int = 1
    """Of a step; their gradients are added."""
    steps: int = 2
    dtype: torch.dtype = torch.float64
    optimizer: str = "sgd"
    """``sgd`` (learning rate and momentum 1) or ``adam``."""
    multiple: int | None = None
    """Of which the output gradients are multiples; R by default, so that the mean over ranks is whole."""

    def __post_init__(self) -> None:
        if self.optimizer == "adam" and self.hidden and self.steps > 1:
            raise ValueError(
                "Adam rounds, and gradients of hidden layers would depend on it: hidden=0 or steps=1, "
                f"got hidden={self.hidden}, steps={self.steps}"
            )

    def parameters(self, rank: int = 0) -> Parameters:
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
        grad = multiple * self._draw((*shape, self.outputs), seed + 1)
        return list(zip(x, grad, strict=True))

    def _draw(self, shape: tuple[int, ...], seed: int) -> torch.Tensor:
        return integers(shape, self.dtype, seed=seed, low=-LARGEST, high=LARGEST)


class Network(nn.Module):
    """The problem's network with these parameters; ``skip`` leaves the shortcut unused."""

    def __init__(self, parameters: Parameters, *, skip: bool = False) -> None:
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

    def __init__(self, parameters: Parameters, prefix: str) -> None:
        super().__init__()
        # Copies: two networks made of the same parameters shall not train each other's.
        self.weight = nn.Parameter(parameters[f"{prefix}.weight"].clone())
        bias = parameters.get(f"{prefix}.bias")
        self.bias = None if bias is None else nn.Parameter(bias.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias)


def optimizer_for(problem: Problem, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """The problem's optimizer over these parameters."""
    kind, arguments = optimizer_class(problem)
    return kind(parameters, **arguments)


def optimizer_class(problem: Problem) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """The problem's optimizer, and what its constructor takes besides parameters."""
    if problem.optimizer == "adam":
        return torch.optim.Adam, dict(ADAM)
    return torch.optim.SGD, {"lr": 1.0, "momentum": 1.0}


def reference(
    problem: Problem,
    *,
    skip: Collection[int] = (),
    lengths: Sequence[int] | None = None,
    divide_by_initial_world_size: bool = True,
) -> Results:
    """The whole batch on one device, step by step: what each rank should return.

    By the chain rule and the optimizer's formula, written out, for whole numbers in int64.

    Args:
        problem: what is trained.
        skip: the ranks that do not use the shortcut.
        lengths: how many steps each rank has batches for; all by default.
        divide_by_initial_world_size: the mean is over all ranks, not over those that still have batches.
    """
    ranks = range(problem.world_size)
    # Adam's parameters are no whole numbers after its first step.
    number = torch.int64 if problem.optimizer == "sgd" else torch.float64
    parameters = {name: value.to(number) for name, value in problem.parameters().items()}
    optimizer: _Sgd | _Adam = _Sgd() if problem.optimizer == "sgd" else _Adam()
    batches = [problem.batches(rank) for rank in ranks]
    results: Results = [{} for _ in ranks]
    for step in range(problem.steps):
        active = [rank for rank in ranks if lengths is None or step < lengths[rank]]
        of_ranks = zip(*(batches[rank][step] for rank in active), strict=True)
        x, grad = (torch.cat(part).flatten(0, 1).to(number) for part in of_ranks)
        used = torch.tensor([rank not in skip for rank in active]).to(number)
        used = used.repeat_interleave(problem.microbatches * problem.rows)[:, None]
        output, x_grad, gradients = _forward_backward(parameters, x, grad, used)
        divisor = problem.world_size if divide_by_initial_world_size else len(active)
        gradients = {name: value // divisor for name, value in gradients.items()}
        parameters = optimizer.step(parameters, gradients)
        for rank, own, own_grad in zip(active, output.chunk(len(active)), x_grad.chunk(len(active)), strict=True):
            now = {"output": own, "input gradient": own_grad}
            now |= {f"{name} gradient": value for name, value in gradients.items()} | parameters
            results[rank] |= {f"step {step + 1}, {name}": value.to(problem.dtype) for name, value in now.items()}
    return results


def _forward_backward(
    parameters: Parameters, x: torch.Tensor, grad: torch.Tensor, used: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, Parameters]:
    """Outputs, input gradients, and the gradients of the sum of the ranks' losses."""
    output = (used * x) @ parameters["shortcut.weight"].T
    x_grad = (used * grad) @ parameters["shortcut.weight"]
    gradients = {"shortcut.weight": grad.T @ (used * x)}
    if "first.weight" in parameters:
        hidden = (x @ parameters["first.weight"].T + parameters["first.bias"]).clamp(min=0)
        hidden_grad = (grad @ parameters["second.weight"]) * (hidden > 0)
        output = output + hidden @ parameters["second.weight"].T + parameters["second.bias"]
        x_grad = x_grad + hidden_grad @ parameters["first.weight"]
        gradients |= {
            "first.weight": hidden_grad.T @ x,
            "first.bias": hidden_grad.sum(0),
            "second.weight": grad.T @ hidden,
            "second.bias": grad.sum(0),
        }
    return output, x_grad, gradients


class _Sgd:
    """https://docs.pytorch.org/docs/stable/generated/torch.optim.SGD.html with learning rate and momentum 1."""

    def __init__(self) -> None:
        self._momentum: Parameters = {}

    def step(self, parameters: Parameters, gradients: Parameters) -> Parameters:
        self._momentum = {name: self._momentum.get(name, 0) + gradient for name, gradient in gradients.items()}
        return {name: value - self._momentum[name] for name, value in parameters.items()}


class _Adam:
    """Kingma and Ba, arXiv:1412.6980, algorithm 1: sums of all gradients so far, not one updated by the last."""

    def __init__(self) -> None:
        self._gradients: list[Parameters] = []

    def step(self, parameters: Parameters, gradients: Parameters) -> Parameters:
        self._gradients.append(gradients)
        return {name: value - self._update(name) for name, value in parameters.items()}

    def _update(self, name: str) -> torch.Tensor:
        first, second = (self._mean(name, power + 1, beta) for power, beta in enumerate((0.5, 0.75)))
        return first / (second.sqrt() + 2.0**-10)

    def _mean(self, name: str, power: int, beta: float) -> torch.Tensor:
        ages = reversed(range(len(self._gradients)))
        terms = [beta**age * past[name] ** power for age, past in zip(ages, self._gradients, strict=True)]
        return (1 - beta) * torch.stack(terms).sum(0) / (1 - beta ** len(terms))


def atol(problem: Problem, name: str) -> float:
    """How far what is called so may be from the reference: not at all, but for what follows an update by Adam."""
    if problem.optimizer == "sgd" or name.endswith((".weight gradient", ".bias gradient")):
        return 0.0
    return ADAM_ATOL if name.endswith(("weight", "bias")) else ADAM_ACTIVATION_ATOL


def assert_same(problem: Problem, got: Sequence[Packed], expected: Results) -> None:
    """Each rank has computed exactly this, or as exactly as ``atol`` says."""
    for rank, (packed, want) in enumerate(zip(got, expected, strict=True)):
        have = packed.unpacked()
        assert list(have) == list(want)
        for name, tensor in want.items():
            # The quick way first: most tensors are equal, and assert_close takes 0.1 ms to see it.
            if have[name].dtype != tensor.dtype or not torch.equal(have[name], tensor):
                assert_close(have[name], tensor, atol(problem, name), f"rank {rank}, {name}")


def assert_close(got: torch.Tensor, expected: torch.Tensor, atol: float, where: str) -> None:
    """Names what differs."""
    torch.testing.assert_close(got, expected, rtol=0, atol=atol, msg=lambda text: f"{where}: {text}")
