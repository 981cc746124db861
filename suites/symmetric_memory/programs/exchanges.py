"""What pipelines and data parallelism exchange, through NVSHMEM's heap and by NCCL: activations, and gradients.

A program returns a function of a size, which returns its step. Both ways of an exchange end with the same numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.shared.bits import fill_with_bits, wrong_bits
from suites.shared.comparison import assert_close
from suites.shared.places import addends
from suites.shared.step import Step, StepOf
from suites.symmetric_memory.programs.one_sided import OpenMemory, open_memory

GRADIENTS = torch.bfloat16
ARRIVED, READ = range(2)
"""Signals: what was sent is there; what was there has been read."""


def handoff_by_nccl(ctx: Context, *, sizes: Sequence[int]) -> StepOf:
    """Each stage sends its activations to the next one, all at once: the first receives none, the last sends none."""

    def step_of(nbytes: int) -> Step[torch.Tensor]:
        sent, received = (torch.zeros(nbytes, dtype=torch.uint8, device=ctx.device) for _ in range(2))
        fill_with_bits(sent, stream=ctx.rank)
        operations = []
        if not _is_last(ctx):
            operations.append(dist.P2POp(dist.isend, sent, ctx.rank + 1))
        if ctx.rank:
            operations.append(dist.P2POp(dist.irecv, received, ctx.rank - 1))

        def step() -> torch.Tensor:
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            return _of_a_receiver(ctx, received)

        return step

    return step_of


def handoff_by_nvshmem(ctx: Context, *, sizes: Sequence[int], open_memory: OpenMemory = open_memory) -> StepOf:
    """Each stage sends its activations to the next one by puts with a signal.

    A sender waits until the last activations were read, a receiver until they came.

    A put goes to the place that it comes from. So stages send from two places in turn: what comes in lies where neither
    neighbour sends from.
    """
    memory = open_memory(ctx, 2 * sum(sizes))

    def step_of(nbytes: int) -> Step[torch.Tensor]:
        places = [memory.allocate(nbytes, torch.uint8) for _ in range(2)]
        sent, received = places[ctx.rank % 2], places[1 - ctx.rank % 2]
        fill_with_bits(sent, stream=ctx.rank)

        def step() -> torch.Tensor:
            if ctx.rank:
                memory.signal(ctx.rank - 1, READ)
            if not _is_last(ctx):
                memory.wait(READ, ctx.rank + 1)
                memory.put(sent, ctx.rank + 1, ARRIVED)
            if ctx.rank:
                memory.wait(ARRIVED, ctx.rank - 1)
            return _of_a_receiver(ctx, received)

        return step

    return step_of


def gradients_by_nccl(ctx: Context, *, sizes: Sequence[int]) -> StepOf:
    """reduce_scatter: each rank ends with the sum of its part of all ranks' gradients."""

    def step_of(nbytes: int) -> Step[torch.Tensor]:
        gradients = _gradients(ctx, nbytes)
        part = gradients.new_empty(len(gradients) // ctx.world_size)

        def step() -> torch.Tensor:
            dist.reduce_scatter_tensor(part, gradients)
            return part

        return step

    return step_of


def gradients_by_nvshmem(ctx: Context, *, sizes: Sequence[int], open_memory: OpenMemory = open_memory) -> StepOf:
    """An all-to-all of the parts of all ranks' gradients; each rank adds up the parts that it gets.

    Parts arrive in two places in turn. A rank that sends for the next step but one has had this rank's parts of the
    next step. This rank sent those when it had added up the parts of this step. So no rank waits only to say that a
    place is free.
    """
    memory = open_memory(ctx, 3 * sum(sizes))

    def step_of(nbytes: int) -> Step[torch.Tensor]:
        numel = nbytes // GRADIENTS.itemsize
        gradients = memory.allocate(numel, GRADIENTS).copy_(_gradients(ctx, nbytes))
        arrivals = itertools.cycle([memory.allocate(numel, GRADIENTS) for _ in range(2)])
        part = torch.empty(numel // ctx.world_size, dtype=GRADIENTS, device=ctx.device)

        def step() -> torch.Tensor:
            arrived = next(arrivals)
            memory.all_to_all(gradients, arrived)
            return torch.sum(arrived.view(ctx.world_size, -1), 0, out=part)

        return step

    return step_of


def verify_handoff(ctx: Context, received: torch.Tensor, steps: int, nbytes: int) -> None:
    """A receiver has the bits of the stage before; they are wiped, so that a later step must bring them anew."""
    expected = nbytes if ctx.rank else 0
    assert received.numel() == expected, f"rank {ctx.rank}: {received.numel()} bytes, not {expected}"
    if not expected:
        return
    wrong = wrong_bits(received, stream=ctx.rank - 1)
    assert not wrong, f"rank {ctx.rank}: {wrong} of {nbytes} bytes are wrong"
    received.zero_()


def verify_gradients(ctx: Context, part: torch.Tensor, steps: int, nbytes: int) -> None:
    """The sum of the rank's part of all ranks' gradients, exactly; it is wiped too."""
    numel = nbytes // GRADIENTS.itemsize // ctx.world_size
    assert part.numel() == numel, f"rank {ctx.rank}: {part.numel()} elements, not {numel}"
    total = torch.zeros(numel, dtype=torch.float64, device=part.device)
    for rank in range(ctx.world_size):
        total += addends(
            numel, dtype=GRADIENTS, rank=rank, ranks=ctx.world_size, device=part.device, start=ctx.rank * numel
        )
    assert_close(part.double(), total, f"rank {ctx.rank}")
    part.zero_()


def _gradients(ctx: Context, nbytes: int) -> torch.Tensor:
    numel = nbytes // GRADIENTS.itemsize
    return addends(numel, dtype=GRADIENTS, rank=ctx.rank, ranks=ctx.world_size, device=ctx.device)


def _is_last(ctx: Context) -> bool:
    return ctx.rank == ctx.world_size - 1


def _of_a_receiver(ctx: Context, received: torch.Tensor) -> torch.Tensor:
    return received if ctx.rank else received[:0]
