"""A step of training on a rank: of a layer that is given its input, and of a problem's network with its optimizer."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pytest_gpuperf import Context
from suites.shared.problems import Batch, Network, Problem, set_rate
from suites.shared.sharding import local_gradient, local_tensor, parameters_on_device
from suites.shared.step import Step, Tensors, gradient_of


def training_step(module: nn.Module, x: torch.Tensor, grad: torch.Tensor) -> Step[Tensors]:
    """A step of forward and backward; it returns the output and every gradient, of DTensors this rank's shard.

    Args:
        module: the layer, on one device or split.
        x: what this rank gives to it.
        grad: the gradient of what it returns on this rank.
    """
    x = x.detach().requires_grad_()

    def step() -> Tensors:
        x.grad = None
        module.zero_grad()
        output = module(x)
        output.backward(grad)
        leaves = {"input": x, **dict(module.named_parameters())}
        return {"output": local_tensor(output)} | {
            f"{name} gradient": local_gradient(leaf, name) for name, leaf in leaves.items()
        }

    return step


def problem_step(
    problem: Problem,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Batch],
    accumulating: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    local: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.detach,
) -> Step[Tensors]:
    """A step of forward and backward over the microbatches, and of the optimizer with the step's learning rate.

    Args:
        problem: what is trained.
        module: whose parameters are named as the problem's, or with a prefix ``module.``.
        optimizer: of the module's parameters.
        batches: of the steps, one after the other and then anew.
        accumulating: around every microbatch but the last: its gradients need not be reduced yet.
        local: this rank's part of a parameter or gradient.
    """
    coming = enumerate(itertools.cycle(batches))
    names = list(problem.parameters())

    def step() -> Tensors:
        number, (x, grad) = next(coming)
        x = x.detach().requires_grad_()
        optimizer.zero_grad()
        outputs = []
        for index, (microbatch, microbatch_grad) in enumerate(zip(x, grad, strict=True)):
            with accumulating() if index + 1 < len(x) else contextlib.nullcontext():
                output = module(microbatch)
                output.backward(microbatch_grad.to(output.dtype))  # of mixed precision, a lower one
            outputs.append(output.detach())
        parameters = {name.removeprefix("module."): value for name, value in module.named_parameters()}
        gradients = {name: local(gradient_of(parameters[name], name)).clone() for name in names}
        set_rate(optimizer, problem.rate(number))
        optimizer.step()
        return {
            "output": torch.cat(outputs),
            "input gradient": gradient_of(x, "input").flatten(0, 1),
            **{f"{name} gradient": gradient for name, gradient in gradients.items()},
            **{name: local(parameters[name]).clone() for name in names},
        }

    return step


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

    def unpacked(self) -> Tensors:
        """The tensors, in their order."""
        places = dict.fromkeys(self.flat, 0)
        tensors = {}
        for name, (dtype, shape) in self.shapes.items():
            numel = shape.numel()
            tensors[name] = self.flat[dtype][places[dtype] : places[dtype] + numel].view(shape)
            places[dtype] += numel
        return tensors


def trajectory(ctx: Context, program: Callable[..., Step[Tensors]], *, problem: Problem, **kwargs: Any) -> Packed:
    """What all steps of the problem return, by step and name."""
    step = program(ctx, problem=problem, **kwargs)
    return Packed.of(all_steps(step, problem.steps))


def all_steps(
    step: Step[Tensors], steps: int, last: contextlib.AbstractContextManager[object] | None = None, *, first: int = 1
) -> Tensors:
    """What so many steps return, by step from ``first`` on, and by name; the last one is made within ``last``."""
    results: Tensors = {}
    for number in range(first, first + steps):
        with last if last is not None and number == first + steps - 1 else contextlib.nullcontext():
            returned = step()
        results |= {f"step {number}, {name}": value for name, value in returned.items()}
    return results


def batches_on_device(ctx: Context, problem: Problem) -> list[Batch]:
    """The rank's batches."""
    return [(x.to(ctx.device), grad.to(ctx.device)) for x, grad in problem.batches(ctx.rank)]


def problem_network(ctx: Context, problem: Problem, *, rank: int = 0, skip: bool = False) -> Network:
    """The network on the rank's device, with the parameters that ``rank`` starts with."""
    return Network(parameters_on_device(ctx, problem.parameters(rank)), skip=skip)


def norms(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """The norm of each, by one kernel where there is one; of local tensors of one dtype."""
    exact = torch.promote_types(gradients[0].dtype, torch.float32)
    return torch.stack(torch._foreach_norm(list(gradients), 2, exact))


def squared_norm(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of all squares."""
    return norms(gradients).square().sum()


def zero_redundancy() -> Callable[..., torch.optim.Optimizer]:
    """torch.distributed.optim.ZeroRedundancyOptimizer, whose package uses what torch itself has deprecated."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer
    return ZeroRedundancyOptimizer
