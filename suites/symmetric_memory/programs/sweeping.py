"""Work at many sizes, through symmetric memory and by NCCL: sums over all ranks, and messages around a ring.

A program returns a function of a size, which returns its step. All steps of a kind end with the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.shared.peer_memory import Allocate, PeerMemory, allocate
from suites.shared.places import addends
from suites.shared.ring import neighbours, ring, sent_bytes
from suites.shared.step import Step, StepOf

SUMMED = torch.bfloat16


def _count(nbytes: int) -> int:
    return nbytes // SUMMED.itemsize


def _filled(ctx: Context, nbytes: int, out: torch.Tensor | None = None) -> torch.Tensor:
    """This rank's addends, in their place if there is one."""
    made = addends(_count(nbytes), dtype=SUMMED, rank=ctx.rank, ranks=ctx.world_size, device=ctx.device)
    return made if out is None else out.copy_(made)


def sum_by_nccl(ctx: Context, *, sizes: Sequence[int]) -> StepOf:
    """all_reduce, in place; gloo's on CPUs."""

    def step_of(nbytes: int) -> Step[torch.Tensor]:
        x = _filled(ctx, nbytes)

        def step() -> torch.Tensor:
            dist.all_reduce(x)
            return x

        return step

    return step_of


def sum_by_one_shot(ctx: Context, *, sizes: Sequence[int]) -> StepOf:
    """Each rank reads all ranks' tensors and adds them up, into a tensor of its own."""
    memory = PeerMemory(ctx, sizes[-1])

    def step_of(nbytes: int) -> Step[torch.Tensor]:
        mine = _filled(ctx, nbytes, memory.tensor[:nbytes].view(SUMMED))
        out = torch.empty_like(mine)
        name = ctx.group.group_name
        return lambda: torch.ops.symm_mem.one_shot_all_reduce_out(mine, "sum", name, out)

    return step_of


def sum_by_two_shot(ctx: Context, *, sizes: Sequence[int]) -> StepOf:
    """Each rank adds up its part, then reads all parts, in place."""
    memory = PeerMemory(ctx, sizes[-1])

    def step_of(nbytes: int) -> Step[torch.Tensor]:
        mine = _filled(ctx, nbytes, memory.tensor[:nbytes].view(SUMMED))
        return lambda: torch.ops.symm_mem.two_shot_all_reduce_(mine, "sum", ctx.group.group_name)

    return step_of


def sum_by_gets(ctx: Context, *, sizes: Sequence[int], allocate: Allocate = allocate) -> StepOf:
    """One-shot by hand, of torch's own additions: what a kernel for it gains is seen beside it."""
    memory = allocate(ctx, sizes[-1])

    def step_of(nbytes: int) -> Step[torch.Tensor]:
        shape = (_count(nbytes),)
        _filled(ctx, nbytes, memory.buffer(ctx.rank, shape, SUMMED))
        ordered = [(ctx.rank + away) % ctx.world_size for away in range(ctx.world_size)]
        parts = [memory.buffer(rank, shape, SUMMED) for rank in ordered]
        out = torch.empty(shape, dtype=SUMMED, device=ctx.device)

        def step() -> torch.Tensor:
            memory.barrier()  # all tensors are there
            out.copy_(parts[0])
            for part in parts[1:]:
                out.add_(part)
            memory.barrier()  # all have been read
            return out

        return step

    return step_of


def ring_by_nccl(ctx: Context, *, sizes: Sequence[int]) -> StepOf:
    """Each rank sends to the next and receives from the one before."""
    return ring(ctx, sizes=sizes)


def ring_by_puts(ctx: Context, *, sizes: Sequence[int], allocate: Allocate = allocate) -> StepOf:
    """Each rank writes into the next one's memory; a barrier tells all that it is there."""
    return _written(ctx, sizes, allocate, lambda there, sent: there.copy_(sent, non_blocking=True))


def ring_by_stores(ctx: Context, *, sizes: Sequence[int], allocate: Allocate = allocate) -> StepOf:
    """As by puts, but a kernel stores: the GPU's cores write to the next one's memory, and no copy engine."""
    return _written(ctx, sizes, allocate, lambda there, sent: torch.bitwise_or(_wide(sent), 0, out=_wide(there)))


def ring_by_gets(ctx: Context, *, sizes: Sequence[int], allocate: Allocate = allocate) -> StepOf:
    """Each rank reads the memory of the one before."""
    return _read(ctx, sizes, allocate, lambda here, there: here.copy_(there, non_blocking=True))


def ring_by_loads(ctx: Context, *, sizes: Sequence[int], allocate: Allocate = allocate) -> StepOf:
    """As by gets, but a kernel loads."""
    return _read(ctx, sizes, allocate, lambda here, there: torch.bitwise_or(_wide(there), 0, out=_wide(here)))


def ring_by_signals(ctx: Context, *, sizes: Sequence[int]) -> StepOf:
    """As by puts, but each rank waits for its own neighbours alone, and none for all."""
    source, memory = sent_bytes(ctx, sizes[-1]), PeerMemory(ctx, sizes[-1])
    following, before = neighbours(ctx)

    def step_of(nbytes: int) -> Step[torch.Tensor]:
        there, here = (memory.buffer(rank, (nbytes,), torch.uint8) for rank in (following, ctx.rank))
        here.zero_()
        sent = source[:nbytes]

        def step() -> torch.Tensor:
            memory.handle.put_signal(before, channel=1)  # what came before has been read
            memory.handle.wait_signal(following, channel=1)
            there.copy_(sent, non_blocking=True)
            memory.handle.put_signal(following, channel=0)
            memory.handle.wait_signal(before, channel=0)
            return here

        return step

    return step_of


Move = Callable[[torch.Tensor, torch.Tensor], object]
"""Takes where the bytes go, and where they are."""


def _written(ctx: Context, sizes: Sequence[int], allocate: Allocate, move: Move) -> StepOf:
    source, memory = sent_bytes(ctx, sizes[-1]), allocate(ctx, sizes[-1])
    following, _ = neighbours(ctx)

    def step_of(nbytes: int) -> Step[torch.Tensor]:
        there, here = (memory.buffer(rank, (nbytes,), torch.uint8) for rank in (following, ctx.rank))
        here.zero_()
        sent = source[:nbytes]

        def step() -> torch.Tensor:
            memory.barrier()  # what came before has been read
            move(there, sent)
            memory.barrier()
            return here

        return step

    return step_of


def _read(ctx: Context, sizes: Sequence[int], allocate: Allocate, move: Move) -> StepOf:
    memory = allocate(ctx, sizes[-1])
    memory.buffer(ctx.rank, (sizes[-1],), torch.uint8).copy_(sent_bytes(ctx, sizes[-1]))
    arrived = torch.zeros(sizes[-1], dtype=torch.uint8, device=ctx.device)
    _, before = neighbours(ctx)

    def step_of(nbytes: int) -> Step[torch.Tensor]:
        there, here = memory.buffer(before, (nbytes,), torch.uint8), arrived[:nbytes].zero_()

        def step() -> torch.Tensor:
            memory.barrier()  # it is there
            move(here, there)
            memory.barrier()  # all have read
            return here

        return step

    return step_of


def _wide(memory: torch.Tensor) -> torch.Tensor:
    """Views the bytes as elements of four bytes: a kernel moves them in larger pieces."""
    return memory.view(torch.int32)
