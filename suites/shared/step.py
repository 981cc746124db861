"""A program prepares and returns its step, a function without arguments: what is checked is what is timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from pytest_gpuperf import Context

Result = TypeVar("Result")
Step = Callable[[], Result]
"""One step of a prepared program: ``Step[torch.Tensor]`` returns a tensor, ``Step[Tensors]`` tensors by name."""
StepOf = Callable[[int], Step[Any]]
"""Takes a size in bytes, and prepares the step of that size; what ``perf.sweep`` asks a program for."""
Tensors = dict[str, torch.Tensor]
"""What a rank holds, by name."""


def once(ctx: Context, program: Callable[..., Step[Result]], **kwargs: Any) -> Result:
    """Prepares a program and calls its step a single time."""
    return program(ctx, **kwargs)()


def second(ctx: Context, program: Callable[..., Step[Result]], **kwargs: Any) -> Result:
    """What the second step returns: nothing of the first one's may be left in it."""
    step = program(ctx, **kwargs)
    step()
    return step()


def each_step(ctx: Context, program: Callable[..., Step[Result]], number: int, /, **kwargs: Any) -> list[Result]:
    """What each of so many steps returns; a result that a later step writes to must be a copy."""
    step = program(ctx, **kwargs)
    return [step() for _ in range(number)]


def gradient_of(leaf: torch.Tensor, name: str = "the leaf") -> torch.Tensor:
    """What backward has left in ``.grad``."""
    assert leaf.grad is not None, f"{name} has no gradient"
    return leaf.grad


def seconds_of_steps(ctx: Context, step: Step[object], number: int) -> list[float]:
    """How long each of so many steps takes this rank, to the end of its device's work."""
    taken = []
    for _ in range(number):
        ctx.barrier()
        start = time.perf_counter()
        step()
        if ctx.device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return taken


WARM_UPS = 2
"""Steps before the capture: libraries allocate, and communicators connect, in the first ones."""


def warmed_up(step: Step[Result]) -> Step[Result]:
    """The step itself, taken as often as before a capture; for ranks without GPUs, so that all else runs there too."""
    for _ in range(WARM_UPS):
        step()
    return step


def captured(step: Step[Result]) -> Step[Result]:
    """Captures a step; the step that is returned replays it, and returns the same tensors each time.

    The step has been taken ``WARM_UPS`` times then: whoever needs the inputs as they were puts them back.

    Args:
        step: works on the same tensors each time, and asks the GPU for nothing that the host waits for.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # NCCL's watchdog asks for events from a thread of its own, which a capture of all threads would not allow.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        output = step()

    def replay() -> Result:
        graph.replay()
        return output

    return replay


NUMBERS = 4096
"""Elements of each tensor, at most twice as many."""


def excerpt(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Elements of each tensor, evenly spread, in units of their root mean square; and the logarithm of that.

    So an absolute tolerance means the same for all of them: a share of the usual size. All of it is float32. A tensor
    of zeros gives NaN, which equals nothing.
    """
    found: Tensors = {}
    for name, tensor in tensors.items():
        sample = spread(tensor)
        size = sample.square().mean().sqrt()
        found[name] = sample / size
        found[f"{name}, size"] = size.log()
    return found


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """The elements that ``excerpt`` takes, as float32."""
    # Odd, so that the elements come from all columns of a matrix, whose width is a power of 2 as a rule.
    stride = max(1, tensor.numel() // NUMBERS) | 1
    return tensor.detach().reshape(-1)[::stride].float()
