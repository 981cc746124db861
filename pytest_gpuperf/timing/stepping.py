"""From a timed program to the step that is timed. Runs in rank processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pytest_gpuperf.ranks.context import Context

Step = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Resettable:
    """A step that changes its inputs, and what puts them back before each sample, untimed."""

    step: Step
    reset: Callable[[], object]

    def __call__(self) -> Any:
        """Takes the step."""
        return self.step()


CAPTURE_WARMUP = 3  # calls on a side stream before a capture, as torch.cuda.graph's documentation asks for


def prepare(context: Context, program: Callable[..., Any], kwargs: Mapping[str, Any]) -> Step:
    """Calls the program once and returns the step that it prepared.

    Raises:
        TypeError: the program returned something else.
    """
    step = program(context, **kwargs)
    if not callable(step):
        name = getattr(program, "__qualname__", repr(program))
        raise TypeError(
            f"timed program {name} returned {name_kind(step)}, not a step: it must prepare its inputs and return "
            "a function of no arguments, which is then timed"
        )
    return step  # type: ignore[no-any-return]


def find_reset(step: Step) -> Callable[[], object] | None:
    """What puts the step's inputs back; None if nothing does."""
    return step.reset if isinstance(step, Resettable) else None


def capture(step: Step, steps: int) -> Step:
    """A step that replays a CUDA graph of ``steps`` calls, and returns what the last of them does.

    The step is called ``CAPTURE_WARMUP`` times before the capture, which itself computes nothing.

    Raises:
        RuntimeError: the step does something that no graph can hold, such as waiting for the device.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(CAPTURE_WARMUP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # thread_local: NCCL's watchdog thread queries events meanwhile, which a global capture forbids.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(steps):
            output = step()

    def replay() -> Any:
        graph.replay()
        return output

    return replay


def name_kind(value: object) -> str:
    """What a program returned instead, for a message."""
    return "None" if value is None else f"a {type(value).__qualname__}"
