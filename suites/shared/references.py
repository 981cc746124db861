"""What one device computes, by another way than the programs: no module, no ``.grad``, no optimizer of torch's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.shared.comparison import Results, assert_same
from suites.shared.problems import Problem
from suites.shared.step import Tensors
from suites.shared.training import Packed


def by_autograd(formula: Callable[[Tensors], torch.Tensor], leaves: Tensors, grad: torch.Tensor) -> Tensors:
    """A formula's output, and its gradient with respect to each of the leaves.

    Args:
        formula: takes the leaves by name.
        leaves: inputs and parameters.
        grad: the gradient of the output.
    """
    leaves = {name: value.clone().requires_grad_() for name, value in leaves.items()}
    output = formula(leaves)
    gradients = torch.autograd.grad(output, list(leaves.values()), grad)
    names = (f"{name} gradient" for name in leaves)
    return {"output": output.detach(), **dict(zip(names, gradients, strict=True))}


def whole_batch(
    problem: Problem,
    *,
    skip: Collection[int] = (),
    lengths: Sequence[int] | None = None,
    divide_by_initial_world_size: bool = True,
) -> list[Tensors]:
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
    results: list[Tensors] = [{} for _ in ranks]
    for step in range(problem.steps):
        active = [rank for rank in ranks if lengths is None or step < lengths[rank]]
        of_ranks = zip(*(batches[rank][step] for rank in active), strict=True)
        x, grad = (torch.cat(part).flatten(0, 1).to(number) for part in of_ranks)
        used = torch.tensor([rank not in skip for rank in active]).to(number)
        used = used.repeat_interleave(problem.microbatches * problem.rows)[:, None]
        output, x_grad, gradients = _forward_backward(parameters, x, grad, used)
        divisor = problem.world_size if divide_by_initial_world_size else len(active)
        gradients = {name: value // divisor for name, value in gradients.items()}
        parameters = optimizer.step(parameters, gradients, int(problem.rate(step)))
        for rank, own, own_grad in zip(active, output.chunk(len(active)), x_grad.chunk(len(active)), strict=True):
            now = {"output": own, "input gradient": own_grad}
            now |= {f"{name} gradient": value for name, value in gradients.items()} | parameters
            results[rank] |= {f"step {step + 1}, {name}": value.to(problem.dtype) for name, value in now.items()}
    return results


def mean_atol(problem: Problem) -> float:
    """How far the first step's mean gradients may be off if each rank's share is divided before the sum.

    NCCL's mean multiplies each of R addends by 1/R, which is rounded, and adds up the rounded products. Addends may
    cancel each other. So the bound is u (R + 2) times the sum of their magnitudes, the update of a parameter by them
    included. Higham, Accuracy and Stability, section 3.1.
    """
    parameters = {name: value.double().abs() for name, value in problem.parameters().items()}
    first = zip(*(problem.batches(rank)[0] for rank in range(problem.world_size)), strict=True)
    x, grad = (torch.cat(part).flatten(0, 1).double().abs() for part in first)
    _, _, gradients = _forward_backward(parameters, x, grad, torch.ones(len(x), 1, dtype=torch.float64))
    most = max(float(value.max()) for value in gradients.values()) / problem.world_size
    return (problem.world_size + 2) * torch.finfo(problem.dtype).eps / 2 * most


def _forward_backward(
    parameters: Tensors, x: torch.Tensor, grad: torch.Tensor, used: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
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
    """https://docs.pytorch.org/docs/stable/generated/torch.optim.SGD.html with momentum 1."""

    def __init__(self) -> None:
        self._momentum: Tensors = {}

    def step(self, parameters: Tensors, gradients: Tensors, rate: int) -> Tensors:
        self._momentum = {name: self._momentum.get(name, 0) + gradient for name, gradient in gradients.items()}
        return {name: value - rate * self._momentum[name] for name, value in parameters.items()}


class _Adam:
    """Kingma and Ba, arXiv:1412.6980, algorithm 1: sums of all gradients so far, not one updated by the last."""

    def __init__(self) -> None:
        self._gradients: list[Tensors] = []

    def step(self, parameters: Tensors, gradients: Tensors, rate: int) -> Tensors:
        self._gradients.append(gradients)
        return {name: value - rate * self._update(name) for name, value in parameters.items()}

    def _update(self, name: str) -> torch.Tensor:
        first, second = (self._mean(name, power + 1, beta) for power, beta in enumerate((0.5, 0.75)))
        return first / (second.sqrt() + 2.0**-10)

    def _mean(self, name: str, power: int, beta: float) -> torch.Tensor:
        ages = reversed(range(len(self._gradients)))
        terms = [beta**age * past[name] ** power for age, past in zip(ages, self._gradients, strict=True)]
        return (1 - beta) * torch.stack(terms).sum(0) / (1 - beta ** len(terms))


# How far Adam's parameters may be apart after T <= 3 steps. Its gradients are exact (H = 0: they depend on no
# parameter), u = 2**-53. Each step rounds exp_avg at most thrice, by u of a sum that is no larger than M, the same sum
# of magnitudes; and exp_avg_sq, v, by at most 3u of itself; hence M is off by 3Tu, v by 3Tu, its root by 1.5Tu. Root,
# two divisions, addition of eps, product: 10u more. M <= sqrt(1.5 v) by Cauchy and Schwarz, as beta1**2 is a third of
# beta2; with the bias corrections 1 - 0.5**t >= 1/2 and 1 - 0.75**t <= 1 no update is above 2.45 lr. An update is thus
# off by 2.45 (4.5T + 10)u < 58u of lr, adding it rounds by u of a parameter that is below 2 + 2.45 (1 + 2 + 1) < 12.
# Three steps, whose rates add up to 4, and once each for both that are compared: 2 * (4 * 58 + 3 * 12)u. Higham,
# Accuracy and Stability, sections 2.2 and 3.1.
ADAM_ATOL = 536 * 2.0**-53
# Outputs are sums of 4 parameters, times 2; input gradients of 4 parameters, times 2m = 8. Their own 4 roundings are by
# 32 * 12u at most, in both that are compared.
ADAM_ACTIVATION_ATOL = 32 * ADAM_ATOL + 2 * 4 * 384 * 2.0**-53


def problem_atol(problem: Problem, name: str) -> float:
    """How far what is called so may be from the reference: not at all, but for what follows an update by Adam."""
    if problem.optimizer == "sgd" or name.endswith((".weight gradient", ".bias gradient")):
        return 0.0
    return ADAM_ATOL if name.endswith(("weight", "bias")) else ADAM_ACTIVATION_ATOL


def assert_trained(problem: Problem, got: Sequence[Packed], expected: Results, *, mean: float = 0.0) -> None:
    """Each rank has computed exactly this, or as exactly as ``problem_atol`` says.

    Args:
        problem: what was trained.
        got: by rank.
        expected: by rank.
        mean: how far gradients, and parameters after one step, may be off besides.
    """

    def atol(name: str) -> float:
        of_mean = 0.0 if name.endswith(("output", "input gradient")) else mean
        return problem_atol(problem, name) + of_mean

    assert_same([packed.unpacked() for packed in got], expected, atol)


def of_all_ranks(ctx: Context, own: torch.Tensor) -> Iterator[torch.Tensor]:
    """Each rank's tensor in turn; all ranks call it at the same time, with tensors of one shape and dtype."""
    for rank in range(ctx.world_size):
        tensor = own.clone() if rank == ctx.rank else torch.empty_like(own)
        dist.broadcast(tensor, src=rank)
        yield tensor


def mean_of_all_ranks(ctx: Context, own: torch.Tensor) -> torch.Tensor:
    """The mean over the ranks, in float64."""
    total = torch.zeros_like(own, dtype=torch.float64)
    for tensor in of_all_ranks(ctx, own):
        total += tensor
    return total / ctx.world_size
