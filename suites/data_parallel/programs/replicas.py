"""Training steps in which each of R ranks has the whole network and batches of its own.

Each step of a program returns the rank's output, its input's gradient, the gradients of all parameters and the
parameters after the optimizer's step.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DataParallel, DistributedDataParallel

from pytest_gpuperf import Context
from suites.shared.inputs import full_width
from suites.shared.problems import Problem, optimizer_for
from suites.shared.step import Step, Tensors
from suites.shared.traffic import Traffic, sizes
from suites.shared.training import Packed, all_steps, batches_on_device, problem_network, problem_step, trajectory

AllReduce = Callable[[Context, torch.Tensor], None]
"""Sums a tensor of one dimension over the ranks, in place."""


def trajectory_and_traffic(
    ctx: Context, program: Callable[..., Step[Tensors]], *, problem: Problem, **kwargs: Any
) -> tuple[Packed, dict[str, int]]:
    """Returns the trajectory, and the bytes that the last step gave to each collective: counting slows a step down."""
    step = program(ctx, problem=problem, **kwargs)
    traffic = Traffic()
    return Packed.of(all_steps(step, problem.steps, traffic)), sizes(traffic.calls)


def trajectory_and_buckets(
    ctx: Context, *, problem: Problem, all_reduce: AllReduce | None, **kwargs: Any
) -> tuple[Packed, list[int]]:
    """Returns the trajectory of DistributedDataParallel, and the sizes of its buckets of gradients.

    The sizes are the bytes of each bucket that reached ``all_reduce``, in order.
    """
    buckets: list[int] = []

    def counted(ctx: Context, tensor: torch.Tensor) -> None:
        assert all_reduce is not None
        buckets.append(tensor.nbytes)
        all_reduce(ctx, tensor)

    hook = None if all_reduce is None else counted
    results = trajectory(ctx, distributed_data_parallel, problem=problem, all_reduce=hook, **kwargs)
    return results, buckets


def distributed_data_parallel(
    ctx: Context,
    *,
    problem: Problem,
    all_reduce: AllReduce | None = None,
    skip: Collection[int] = (),
    no_sync: bool = True,
    **options: Any,
) -> Step[Tensors]:
    """DistributedDataParallel, whose ranks start with parameters of their own: it gives all of them rank 0's.

    Args:
        ctx: the rank's context.
        problem: what is trained.
        all_reduce: sums the gradients in DistributedDataParallel's place.
        skip: the ranks whose output does not depend on the shortcut.
        no_sync: whether gradients are reduced only in a step's last microbatch.
        options: of DistributedDataParallel.
    """
    module = problem_network(ctx, problem, rank=ctx.rank, skip=ctx.rank in skip)
    wrapped = DistributedDataParallel(module, find_unused_parameters=bool(skip), **options)
    if all_reduce is not None:
        wrapped.register_comm_hook(ctx, averaged_by(all_reduce))
    optimizer = optimizer_for(problem, wrapped.parameters())
    # With a static graph the very first backward has to reduce: it is then that the graph is recorded, and torch 2.13
    # fails in no_sync with "expect_autograd_hooks_ INTERNAL ASSERT FAILED".
    recorded = not options.get("static_graph", False)

    def accumulating() -> contextlib.AbstractContextManager[None]:
        nonlocal recorded
        skipped, recorded = recorded and no_sync, True
        return wrapped.no_sync() if skipped else contextlib.nullcontext()

    return problem_step(problem, wrapped, optimizer, batches_on_device(ctx, problem), accumulating)


def averaged_by(all_reduce: AllReduce) -> Callable[[Context, dist.GradBucket], torch.futures.Future[torch.Tensor]]:
    """A hook of DistributedDataParallel that averages a bucket of gradients by this all-reduce."""
    # A lambda: DistributedDataParallel refuses hooks whose annotations are strings, as this module's are.
    return lambda ctx, bucket: _average(ctx, bucket.buffer(), all_reduce)


def _average(ctx: Context, gradients: torch.Tensor, all_reduce: AllReduce) -> torch.futures.Future[torch.Tensor]:
    gradients.div_(ctx.world_size)
    all_reduce(ctx, gradients)
    # A future of a device makes the stream that takes the result wait for the one that computed it.
    devices: list[int | str | torch.device] | None = [ctx.device] if ctx.device.type == "cuda" else None
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
    future.set_result(gradients)
    return future


def joined(
    ctx: Context,
    *,
    problem: Problem,
    lengths: Sequence[int],
    divide_by_initial_world_size: bool,
    first: int = 0,
    no_sync: bool = False,
) -> Packed:
    """``lengths[r]`` steps on rank r: ranks that have run out of batches take part in the others' all-reduces.

    Args:
        ctx: the rank's context.
        problem: what is trained.
        lengths: how many steps each rank has.
        divide_by_initial_world_size: whether the mean is over all ranks, not over those that still have batches.
        first: of the ranks that train, in a group of their own; those before it do nothing.
        no_sync: whether gradients are reduced only in a step's last microbatch.

    Returns:
        What the steps return; and the parameters when all ranks are through, which all should have by then.
    """
    group = dist.new_group(list(range(first, ctx.world_size))) if first else None
    rank = ctx.rank - first
    if rank < 0:
        return Packed.of({})
    module = DistributedDataParallel(problem_network(ctx, problem, rank=rank), process_group=group)
    optimizer = optimizer_for(problem, module.parameters())
    batches = [(x.to(ctx.device), grad.to(ctx.device)) for x, grad in problem.batches(rank)]
    accumulating = module.no_sync if no_sync else contextlib.nullcontext
    step = problem_step(problem, module, optimizer, batches, accumulating)
    with module.join(divide_by_initial_world_size=divide_by_initial_world_size):
        results = all_steps(step, lengths[rank])
    final = dict(module.module.named_parameters())
    return Packed.of(results | {f"at last, {name}": final[name] for name in problem.parameters()})


def data_parallel(ctx: Context, *, problem: Problem) -> Step[Tensors]:
    """DataParallel: rank 0's process alone scatters the whole batch over R GPUs, and sums their gradients.

    The other ranks' steps return nothing: their processes only see to it that there are R GPUs.
    """
    if ctx.rank:
        return dict
    module = DataParallel(problem_network(ctx, problem), list(range(ctx.world_size)))
    batches = []
    for of_ranks in zip(*(problem.batches(rank) for rank in range(ctx.world_size)), strict=True):
        # (microbatches, ranks * rows, features), in the ranks' order: chunk r of what is scattered is rank r's.
        x, grad = (torch.cat(part, dim=1).to(ctx.device) for part in zip(*of_ranks, strict=True))
        batches.append((x, grad / ctx.world_size))  # the loss of all is the mean over the ranks
    return problem_step(problem, module, optimizer_for(problem, module.parameters()), batches)


def ring_all_reduce(ctx: Context, tensor: torch.Tensor) -> None:
    """Sums over the ranks by sending to the next rank alone: a reduce-scatter and an all-gather, R - 1 hops each.

    Patarasu and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations (2009), section 4; each
    rank sends 2 (R - 1) / R of the tensor. R need not divide its elements: chunks differ by one at most.

    Raises:
        ValueError: not one contiguous dimension, so that chunks would not be views of adjacent elements.
    """
    _reduce_scatter_hops(ctx, _chunks(ctx, tensor))
    _all_gather_hops(ctx, _chunks(ctx, tensor), first=ctx.rank + 1)


def _chunks(ctx: Context, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    if tensor.dim() != 1 or not tensor.is_contiguous():
        raise ValueError(
            "ring_all_reduce sums contiguous tensors of one dimension, got shape "
            f"{tuple(tensor.shape)} with strides {tensor.stride()}: give it tensor.view(-1)"
        )
    return tensor.tensor_split(ctx.world_size)


def _reduce_scatter_hops(ctx: Context, chunks: Sequence[torch.Tensor]) -> None:
    """Afterwards rank r has the sum of chunk r + 1."""
    received = torch.empty_like(chunks[0])  # no chunk is larger than the first
    for hop in range(ctx.world_size - 1):
        own, preceding = (chunks[(ctx.rank - hop - offset) % ctx.world_size] for offset in (0, 1))
        _exchange(ctx, own, received[: len(preceding)])
        preceding += received[: len(preceding)]


def _all_gather_hops(ctx: Context, chunks: Sequence[torch.Tensor], *, first: int) -> None:
    """Each rank passes on what it has received before; to begin with, chunk ``first``."""
    for hop in range(ctx.world_size - 1):
        own, preceding = (chunks[(first - hop - offset) % ctx.world_size] for offset in (0, 1))
        _exchange(ctx, own, preceding)


def _exchange(ctx: Context, sent: torch.Tensor, received: torch.Tensor) -> None:
    following, preceding = (ctx.rank + 1) % ctx.world_size, (ctx.rank - 1) % ctx.world_size
    operations = []
    # With fewer elements than ranks some chunks are empty; sender and receiver both know, and nothing is sent.
    if sent.numel():
        operations.append(dist.P2POp(dist.isend, sent, following))
    if received.numel():
        operations.append(dist.P2POp(dist.irecv, received, preceding))
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()


def addend(rank: int, *, world_size: int, numel: int, dtype: torch.dtype, seed: int, step: int) -> torch.Tensor:
    """What a rank's tensor holds at a step, on the CPU."""
    return full_width((numel,), dtype, seed=(seed * 8 + step) * 64 + rank, addends=world_size)


def all_reduce_by(
    ctx: Context, *, all_reduce: AllReduce, numel: int, dtype: torch.dtype, seed: int
) -> Callable[[], torch.Tensor]:
    """An all-reduce alone; numbers differ by step and rank, and need every bit that sums leave them."""
    coming = itertools.count()

    def step() -> torch.Tensor:
        x = addend(ctx.rank, world_size=ctx.world_size, numel=numel, dtype=dtype, seed=seed, step=next(coming))
        x = x.to(ctx.device)
        all_reduce(ctx, x)
        return x

    return step


def sums_and_traffic(ctx: Context, **kwargs: Any) -> tuple[list[torch.Tensor], dict[str, int]]:
    """What two steps of the all-reduce give, and the bytes that this rank gave to each collective in the second."""
    step = all_reduce_by(ctx, **kwargs)
    first = step()
    with Traffic() as traffic:
        second = step()
    return [first, second], sizes(traffic.calls)
