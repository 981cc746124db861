"""The latency of a load: a walk through memory whose every step must wait for the one before.

One thread follows a cycle through a table, each place of which holds the next one's number; where it ends is known.
The table is in the GPU's own memory, another GPU's, or the host's.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from pytest_gpuperf import Context
from suites.shared.peer_memory import PeerMemory
from suites.shared.step import Step

INDEX = torch.int64
APART = 128 // INDEX.itemsize
"""Elements between two places: a line of a GPU's caches is 128 bytes."""
WHERE = ("own", "peer", "host")
KERNEL = """
extern "C" __global__ void walk(const volatile long long* table, long long* end, int steps) {
    long long place = 0;
    for (int step = 0; step < steps; ++step) place = table[place];
    *end = place;
}
"""


def stride_of(places: int) -> int:
    """About the golden section of all places, and coprime to their number: far from one place to the next."""
    stride = round(places * (math.sqrt(5) - 1) / 2)
    return next(each for each in range(max(1, stride), 2 * places + 2) if math.gcd(each, places) == 1)


def table_of(places: int) -> torch.Tensor:
    """A cycle through so many places, the first element of each line; elements between them are -1."""
    table = torch.full((places * APART,), -1, dtype=INDEX)
    numbers = torch.arange(places, dtype=INDEX)
    table[numbers * APART] = (numbers + stride_of(places)) % places * APART
    return table


def end_of(places: int, steps: int) -> int:
    """The end of a walk from the first place."""
    return steps * stride_of(places) % places * APART


def walk(ctx: Context, *, where: str, places: int, steps: int) -> Step[torch.Tensor]:
    """A walk of so many loads; its step returns the element where it ends.

    Args:
        ctx: the rank.
        where: the table lies: in the GPU's own memory, the next rank's, or the host's.
        places: of the table, 128 bytes each.
        steps: loads.
    """
    # What is mapped is mapped for as long as its memory is kept.
    memory = PeerMemory(ctx, table_of(places).nbytes) if where == "peer" and ctx.device.type == "cuda" else None
    table, end = _placed(ctx, where, table_of(places), memory), torch.zeros(1, dtype=INDEX, device=ctx.device)
    if ctx.device.type == "cpu":
        return lambda: end.fill_(_walked(table, steps))
    kernel = _kernel()

    def step() -> torch.Tensor:
        assert memory is None or memory.tensor.is_cuda
        kernel((1, 1, 1), (1, 1, 1), [table, end, steps])
        return end

    return step


def _walked(table: torch.Tensor, steps: int) -> int:
    place = 0
    for _ in range(steps):
        place = int(table[place])
    return place


def _placed(ctx: Context, where: str, table: torch.Tensor, memory: PeerMemory | None) -> torch.Tensor:
    if ctx.device.type == "cpu":
        return table
    match where:
        case "own":
            return table.to(ctx.device)
        case "host":
            return table.pin_memory()
        case "peer" if memory is not None:
            memory.buffer(ctx.rank, tuple(table.shape), INDEX).copy_(table)
            ctx.barrier()
            torch.cuda.synchronize()
            return memory.buffer((ctx.rank + 1) % ctx.world_size, tuple(table.shape), INDEX)
    raise ValueError(f"a table lies in {', '.join(WHERE)} memory, got {where!r}")


def _kernel() -> Callable[..., None]:
    # NVRTC comes with torch for CUDA, so that no compiler need be installed. The public way, an extension, needs one.
    compile_kernel = getattr(torch.cuda, "_compile_kernel", None)
    if compile_kernel is None:
        pytest.skip(f"torch {torch.__version__} compiles no kernel at run time: install 2.10 or newer")
    try:
        kernel: Callable[..., None] = compile_kernel(KERNEL, "walk")
    except (OSError, RuntimeError) as error:
        pytest.skip(f"NVRTC compiles no kernel here ({error}): install nvidia-cuda-nvrtc for this torch")
    return kernel
