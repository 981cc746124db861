"""A step as a CUDA graph: one launch by the host instead of one for each kernel."""

from __future__ import annotations

import torch

from suites.shared.step import Result, Step

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
