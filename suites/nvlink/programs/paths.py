"""The ways over one link: a GPU writes or reads, its copy engine or its cores do it, one pair alone or all at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, TypeAlias

import pytest
import torch

from pytest_gpuperf import Context
from suites.nvlink.programs.copies import complaint, fill_sent

Engine: TypeAlias = Literal["copy_engine", "kernel"]
"""The engine that moves the bytes: the GPU's copy engine, or a kernel on its SMs."""
Access: TypeAlias = Literal["write", "read"]
"""Whether a GPU sends what it has, or fetches what the other has."""

WORD = 16
"""Bytes that one thread moves at a time: the widest load and store there is."""
KERNEL = """
extern "C" __global__ void copy(const uint4* from, uint4* to, int count) {
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) to[at] = from[at];
}
"""
THREADS, BLOCKS_OF_SM = 512, 4

Copy: TypeAlias = Callable[[torch.Tensor, torch.Tensor], None]
"""From, and to; the rank's own GPU does it, on its current stream."""


def partner(ctx: Context) -> int:
    """The rank in the other half of the GPUs with the same place there: links between halves are the bisection."""
    assert ctx.world_size % 2 == 0, f"{ctx.world_size} ranks have no two halves"
    return (ctx.rank + ctx.world_size // 2) % ctx.world_size


def rates(
    ctx: Context, *, engine: Engine, access: Access, alone: bool, nbytes: int, samples: int, copies: int
) -> list[float] | None:
    """Bandwidths between the rank's GPU and its partner's, in B/s; None for a rank that copies nothing.

    A rank that copies nothing returns at once, because waiting in an NCCL barrier takes bandwidth from the links.

    Args:
        ctx: the rank.
        engine: who moves the bytes.
        access: whether the rank writes or reads.
        alone: whether only rank 0 copies; otherwise all ranks copy at once, so every link carries both directions.
        nbytes: size of one copy, a multiple of 16.
        samples: how often the copies are timed.
        copies: how many copies one sample times, back to back.

    Raises:
        AssertionError: what is timed did not arrive.
    """
    if alone and ctx.rank != 0:
        return None
    source, destination = _ends(ctx, access, nbytes)
    copy = _copy(ctx, engine)
    for _ in range(copies):  # the first maps the peer's memory, and an idle link's power state has to rise
        copy(source, destination)
    destination.zero_()  # what is timed has to write it anew
    _wait(ctx)
    found = []
    for _ in range(samples):
        if not alone:
            ctx.barrier()
        found.append(copies * nbytes / _seconds(ctx, lambda: copy(source, destination), copies))
    sender = ctx.rank if access == "write" else partner(ctx)
    wrong = complaint(destination, rank=sender, seed=nbytes, gpu=_gpu(ctx, access))
    assert not wrong, f"rank {ctx.rank}: {wrong}"
    return found


def _ends(ctx: Context, access: Access, nbytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """From and to: one on the rank's own GPU, and the other on its partner's."""
    here = ctx.device
    there = torch.device("cuda", partner(ctx)) if here.type == "cuda" else here
    sender, receiver = (here, there) if access == "write" else (there, here)
    source = torch.empty(nbytes, dtype=torch.uint8, device=sender)
    destination = torch.empty(nbytes, dtype=torch.uint8, device=receiver)
    if ctx.device.type == "cuda":
        # With the first copy, torch lets the sender reach the receiver's memory. A kernel that reads needs the reverse.
        destination[:1].copy_(source[:1])
        source[:1].copy_(destination[:1])
    fill_sent(source, rank=ctx.rank if access == "write" else partner(ctx), seed=nbytes)
    destination.zero_()
    if ctx.device.type == "cuda":
        torch.cuda.synchronize(there)
    _wait(ctx)
    return source, destination


def _gpu(ctx: Context, access: Access) -> int:
    return partner(ctx) if access == "write" else ctx.rank


def _wait(ctx: Context) -> None:
    if ctx.device.type == "cuda":
        torch.cuda.synchronize()


def _seconds(ctx: Context, copy: Callable[[], None], copies: int) -> float:
    if ctx.device.type == "cpu":
        began = time.perf_counter()
        for _ in range(copies):
            copy()
        return time.perf_counter() - began
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    copy()  # not timed: it keeps the GPU busy while the host enqueues the copies that are
    start.record()
    for _ in range(copies):
        copy()
    end.record()
    end.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return milliseconds / 1e3


def _copy(ctx: Context, engine: Engine) -> Copy:
    if ctx.device.type == "cpu":
        return _on_cpu
    return _by_copy_engine() if engine == "copy_engine" else _by_kernel(ctx.device)


def _on_cpu(source: torch.Tensor, destination: torch.Tensor) -> None:
    destination.copy_(source)


def _by_copy_engine() -> Copy:
    # torch issues a copy between GPUs on the sender's stream always, so the sender's engine would do a read as well.
    try:
        from cuda.bindings import runtime
    except ImportError:
        pytest.skip("a copy that the receiving GPU issues needs CUDA's Python bindings: install cuda-bindings")

    def copy(source: torch.Tensor, destination: torch.Tensor) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        kind = runtime.cudaMemcpyKind.cudaMemcpyDefault
        (error,) = runtime.cudaMemcpyAsync(destination.data_ptr(), source.data_ptr(), source.nbytes, kind, stream)
        assert error == runtime.cudaError_t.cudaSuccess, f"cudaMemcpyAsync returned {error}"

    return copy


def _by_kernel(device: torch.device) -> Copy:
    # NVRTC comes with torch for CUDA, so that no compiler need be installed. The public way, an extension, needs one.
    compile_kernel = getattr(torch.cuda, "_compile_kernel", None)
    if compile_kernel is None:
        pytest.skip(f"torch {torch.__version__} compiles no kernel at run time: install 2.10 or newer")
    try:
        kernel = compile_kernel(KERNEL, "copy")
    except (OSError, RuntimeError) as error:
        pytest.skip(f"NVRTC compiles no kernel here ({error}): install nvidia-cuda-nvrtc for this torch")
    blocks = BLOCKS_OF_SM * torch.cuda.get_device_properties(device).multi_processor_count

    def copy(source: torch.Tensor, destination: torch.Tensor) -> None:
        kernel((blocks, 1, 1), (THREADS, 1, 1), [source, destination, source.nbytes // WORD])

    return copy
