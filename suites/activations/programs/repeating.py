"""Programs that count how often checkpointed functions run, note their random numbers, and note calls of hooks."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, set_checkpoint_early_stop

from pytest_gpuperf import Context

Recomputing = Callable[[nn.Module, torch.Tensor, bool], torch.Tensor]
"""Takes a module, its input, and whether random numbers are drawn as before."""


class Noted(nn.Module):
    """Squares its input, and adds a number; it notes down a random number each time it runs."""

    def __init__(self, added: int = 0) -> None:
        super().__init__()
        self.added = added
        self.drawn: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The squares and the number."""
        self.drawn.append(torch.rand((), device=x.device))
        return x * x + self.added


def _called(module: nn.Module, x: torch.Tensor, preserve: bool, *, reentrant: bool) -> torch.Tensor:
    output: torch.Tensor = checkpoint(module, x, use_reentrant=reentrant, preserve_rng_state=preserve)
    return output


def _in_segments(module: nn.Module, x: torch.Tensor, preserve: bool, *, reentrant: bool) -> torch.Tensor:
    """The first of two segments; the last one is never computed again."""
    parts = [module, nn.Identity()]
    output: torch.Tensor = checkpoint_sequential(parts, 2, x, use_reentrant=reentrant, preserve_rng_state=preserve)
    return output


def _wrapped(module: nn.Module, x: torch.Tensor, preserve: bool, *, kind: CheckpointImpl) -> torch.Tensor:
    output: torch.Tensor = checkpoint_wrapper(module, checkpoint_impl=kind, preserve_rng_state=preserve)(x)
    return output


CALLS: Mapping[str, Recomputing] = {
    "function": functools.partial(_called, reentrant=False),
    "function, reentrant": functools.partial(_called, reentrant=True),
    "segments": functools.partial(_in_segments, reentrant=False),
    "segments, reentrant": functools.partial(_in_segments, reentrant=True),
    "wrapper": functools.partial(_wrapped, kind=CheckpointImpl.NO_REENTRANT),
    "wrapper, reentrant": functools.partial(_wrapped, kind=CheckpointImpl.REENTRANT),
}


def draws(ctx: Context, *, preserve: bool, seed: int) -> dict[str, torch.Tensor]:
    """By way: what a module draws in forward, what when it runs again, and what is drawn afterwards."""
    told = {}
    for way, call in CALLS.items():
        torch.manual_seed(seed)
        module = Noted()
        x = torch.ones(3, device=ctx.device, requires_grad=True)
        call(module, x, preserve).sum().backward()
        told[way] = torch.stack([*module.drawn, torch.rand((), device=ctx.device)])
    return told


def sequence(ctx: Context, *, numbers: int, seed: int) -> torch.Tensor:
    """So many random numbers, drawn one by one."""
    torch.manual_seed(seed)
    return torch.stack([torch.rand((), device=ctx.device) for _ in range(numbers)])


def runs_in_segments(
    ctx: Context, *, functions: int, segments: int, listed: bool, reentrant: bool
) -> tuple[list[int], torch.Tensor]:
    """Returns how often each of several functions runs in forward and backward, and the gradient of the input.

    Args:
        ctx: the rank's context.
        functions: their number; the first one squares its input, and each later one adds 1 more to the square.
        segments: as ``checkpoint_sequential`` has it.
        listed: whether the functions are in a list, and not in a module.
        reentrant: the kind of checkpoint.
    """
    modules = [Noted(added) for added in range(functions)]
    x = torch.ones(2, dtype=torch.float64, device=ctx.device, requires_grad=True)
    given: Any = modules if listed else nn.Sequential(*modules)
    checkpoint_sequential(given, segments, x, use_reentrant=reentrant).sum().backward()
    assert x.grad is not None
    return [len(module.drawn) for module in modules], x.grad


STOPS: Mapping[str, tuple[bool | None, bool | None]] = {
    "default": (None, None),
    "argument": (None, False),
    "context": (False, None),
    "context over argument": (True, False),
    "context over argument, off": (False, True),
}
"""The arguments of ``set_checkpoint_early_stop`` and of ``checkpoint(early_stop=)``; None: not given."""


def runs_after_the_last_saved(ctx: Context) -> dict[str, int]:
    """Returns how often a function runs past its last saved tensor, for each way to set the early stop."""
    told = {}
    for name, (context, argument) in [*STOPS.items(), ("default, afterwards", (None, None))]:
        runs: list[int] = []

        def tailed(x: torch.Tensor, runs: list[int] = runs) -> torch.Tensor:
            made = x * x
            runs.append(1)
            return made + 1

        options: dict[str, Any] = {} if argument is None else {"early_stop": argument}
        x = torch.ones(3, device=ctx.device, requires_grad=True)
        with contextlib.nullcontext() if context is None else set_checkpoint_early_stop(context):
            output = checkpoint(tailed, x, use_reentrant=False, **options)
        output.sum().backward()
        told[name] = len(runs)
    return told


def backward_again(ctx: Context, *, grouped: bool) -> tuple[int, torch.Tensor]:
    """Returns how often a function runs whose two results have a backward each, and the input's gradient.

    Args:
        ctx: the rank's context.
        grouped: whether both backwards are in one ``GraphExecGroup``.
    """
    runs: list[int] = []

    def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        runs.append(1)
        left, right = x.chunk(2)
        return left * left, right * right * right

    x = torch.arange(1.0, 5.0, device=ctx.device, requires_grad=True)
    outputs = checkpoint(halves, x, use_reentrant=False)
    group: Any = contextlib.nullcontext()
    if grouped:
        from torch.utils.checkpoint import GraphExecGroup

        group = GraphExecGroup()
    with group:
        for output in outputs:
            output.sum().backward(retain_graph=True)
    if not grouped:
        outputs[0].sum().backward()
    assert x.grad is not None
    return len(runs), x.grad


def with_a_constant(ctx: Context, *, reentrant: bool) -> torch.Tensor:
    """Returns the gradient of 1, 2 and 3 if their squares count twice and their triples five times.

    A constant is the first of the function's results.
    """

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.detach() + 1, x * x, 3 * x

    x = torch.arange(1.0, 4.0, device=ctx.device, requires_grad=True)
    _, squares, triples = checkpoint(function, x, use_reentrant=reentrant)
    (2 * squares + 5 * triples).sum().backward()
    assert x.grad is not None
    return x.grad


def hooked(ctx: Context) -> list[tuple[str, Sequence[float | None]]]:
    """Returns the gradients that hooks on several tensors get, in the order of their calls.

    Of four tensors the third is in no graph at all, and the fourth only in that of the first backward. There is a
    backward of everything, one without the fourth, one of the first tensor alone, and one without hooks.
    """
    told: list[tuple[str, Sequence[float | None]]] = []
    first, second, idle, fourth = tensors = [
        torch.tensor(float(number), device=ctx.device, requires_grad=True) for number in (2, 3, 5, 7)
    ]

    def of_all(gradients: Sequence[torch.Tensor | None]) -> None:
        told.append(("all", [None if gradient is None else float(gradient) for gradient in gradients]))

    def of_any(gradient: torch.Tensor) -> None:
        told.append(("any", [float(gradient)]))

    handles = [
        register_multi_grad_hook(tensors, of_all),
        register_multi_grad_hook([first, second, fourth], of_any, mode="any"),
    ]
    (first * second + second * fourth).backward()
    (first * second * 2).backward()
    (first * second).backward(inputs=[first])
    for handle in handles:
        handle.remove()
    (first * idle).backward()
    return told
