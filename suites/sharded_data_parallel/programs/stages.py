"""Training steps in which each of R ranks holds a shard of parameters, gradients or optimizer state.

The steps return what ``suites.shared.training.problem_step`` does, of sharded tensors this rank's shard. They also note
what the rank holds, in the dictionary ``memory``; suites.shared.traffic counts what it sends.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from pytest_gpuperf import Context
from suites.shared.problems import Network, Problem, optimizer_class, optimizer_for
from suites.shared.step import Step, Tensors
from suites.shared.traffic import Traffic, sizes
from suites.shared.training import Packed, all_steps, batches_on_device, problem_network, problem_step, zero_redundancy

ShardModule = Callable[..., None]
"""Called as ``shard_module(network, **options of fully_shard)``: shards the network in place."""
Accumulation = Literal["whole", "gathered", "sharded", "averaged"]
"""The gradients that a rank keeps between the microbatches of a step.

``whole``: all of its own. ``gathered``: the same, and parameters stay gathered. ``sharded``: its shard, summed over the
ranks of its replica. ``averaged``: its shard, averaged over all ranks.
"""


@dataclass(frozen=True, slots=True)
class Held:
    """The memory that some tensors keep alive on a rank."""

    nbytes: int
    """Padding included, each byte once."""
    devices: frozenset[str]
    """The types of the devices that it is on."""


Memory = dict[str, Held]


@dataclass(frozen=True, slots=True)
class Account:
    """A rank's results and what they cost it."""

    results: Packed
    traffic: dict[str, int] | None
    """Bytes given to each collective in the last step, if they were counted."""
    memory: Memory
    """What is held after the last step, of ``parameters``, ``gradients`` and ``optimizer`` state; of the parameters
    ``between`` forward and backward; and, if they are sharded, of all parameters while each layer runs its forward:
    ``in first``, for example."""
    device: str
    """The type of the rank's device."""


def account(
    ctx: Context,
    program: Callable[..., Step[Tensors]],
    *,
    problem: Problem,
    replicas: int | None = None,
    count: bool = True,
    **kwargs: Any,
) -> Account:
    """Runs all steps of the problem.

    Args:
        ctx: the rank's context.
        program: a program that takes ``memory``.
        problem: what is trained.
        replicas: if given, the program gets a ``mesh`` of two dimensions: so many replicas of the shards.
        count: whether bytes are counted, which slows the last step down.
        kwargs: of the program.
    """
    memory: Memory = {}
    if replicas is not None:
        kwargs["mesh"] = ctx.mesh((replicas, ctx.world_size // replicas), ("replicate", "shard"))
    step = program(ctx, problem=problem, memory=memory, **kwargs)
    traffic = Traffic() if count else None
    results = Packed.of(all_steps(step, problem.steps, traffic))
    return Account(results, None if traffic is None else sizes(traffic.calls), memory, ctx.device.type)


def by_layer(module: Network, **options: Any) -> None:
    """The first layer is gathered by itself, all others together."""
    if module.first is not None:
        fully_shard(module.first, **options)
    fully_shard(module, **options)


def fully_sharded(
    ctx: Context,
    *,
    problem: Problem,
    memory: Memory | None = None,
    mesh: DeviceMesh | None = None,
    parameters: Tensors | None = None,
    shard_module: ShardModule = by_layer,
    precision: MixedPrecisionPolicy | None = None,
    offload: bool = False,
    reshard_after_forward: bool = True,
    accumulation: Accumulation = "whole",
) -> Step[Tensors]:
    """FSDP2: parameters are gathered for a layer's forward and backward, gradients scattered as they are summed.

    Args:
        ctx: the rank's context.
        problem: what is trained.
        memory: filled by each step.
        mesh: over all ranks, in one dimension, by default; of two (HSDP) the first one replicates the shards.
        parameters: the initial ones, the problem's by default.
        shard_module: applies ``fully_shard`` to the network's layers.
        precision: of computation and reduction, the problem's dtype by default.
        offload: shards live on the CPU, and so does the optimizer.
        reshard_after_forward: whether backward gathers the parameters anew.
        accumulation: of the gradients of several microbatches.
    """
    home = torch.device("cpu") if offload else ctx.device
    initial = problem.parameters() if parameters is None else parameters
    module = Network({name: value.to(home) for name, value in initial.items()})
    shard_module(
        module,
        mesh=ctx.mesh((ctx.world_size,)) if mesh is None else mesh,
        reshard_after_forward=reshard_after_forward,
        mp_policy=precision or MixedPrecisionPolicy(),
        # Pinned memory is the device's to give: a CPU alone has none.
        offload_policy=CPUOffloadPolicy(pin_memory=ctx.device.type == "cuda") if offload else OffloadPolicy(),
    )
    optimizer = optimizer_for(problem, module.parameters())
    return _step(ctx, problem, module, optimizer, {} if memory is None else memory, accumulation)


def _step(
    ctx: Context,
    problem: Problem,
    module: Network,
    optimizer: torch.optim.Optimizer,
    memory: Memory,
    accumulation: Accumulation,
) -> Step[Tensors]:
    sharded = cast("FSDPModule", module)  # fully_shard changes the class of its module
    for name, layer in module.named_children():
        layer.register_forward_pre_hook(noting(module, f"in {name}", memory))  # after the one that gathers

    @contextlib.contextmanager
    def accumulating() -> Iterator[None]:
        sharded.set_requires_gradient_sync(accumulation not in ("whole", "gathered"))
        sharded.set_reshard_after_backward(accumulation != "gathered")
        sharded.set_requires_all_reduce(accumulation != "sharded")
        yield
        sharded.set_requires_gradient_sync(True)
        sharded.set_reshard_after_backward(True)
        sharded.set_requires_all_reduce(True)

    step = problem_step(problem, module, optimizer, batches_on_device(ctx, problem), accumulating, local_shard)
    return remembering(step, module, optimizer, memory)


def local_shard(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()


def noting(module: nn.Module, where: str, memory: Memory) -> Callable[..., None]:
    """A hook that notes in ``memory`` what the module's parameters take then."""

    def note(*_: object) -> None:
        memory[where] = held(module.parameters())

    return note


def remembering(
    step: Step[Tensors], module: nn.Module, optimizer: torch.optim.Optimizer, memory: Memory
) -> Step[Tensors]:
    """The step, which also notes in ``memory`` what the rank holds."""
    module.register_forward_hook(noting(module, "between", memory))

    def remembered() -> Tensors:
        results = step()
        parameters = list(module.parameters())
        memory["parameters"] = held(parameters)
        memory["gradients"] = held(value.grad for value in parameters if value.grad is not None)
        memory["optimizer"] = held(state_tensors(optimizer))
        return results

    return remembered


def state_tensors(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """The optimizer's state on this rank, without the count of steps, a number for each parameter."""
    local = getattr(optimizer, "optim", optimizer)  # ZeroRedundancyOptimizer keeps one of this rank's parameters
    for state in local.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor) and value.dim())


def largest_left(ctx: Context, *, width: int, reshard_after_forward: bool) -> tuple[int, int]:
    """Bytes of the largest storage that this program keeps alive on the rank, after a forward and after the whole step.

    FSDP keeps to itself what it gathers, so all tensors that Python knows count. Those that were alive before do not:
    ranks are warm, and earlier tests or the caches of libraries left them.
    """
    _forward_of_sharded(ctx, 2 * ctx.world_size, reshard_after_forward)[1].sum().backward()  # fills libraries' caches
    gc.collect()
    before = _plain_tensors()  # holds them, so that none of their storages becomes that of a later tensor
    module, output = _forward_of_sharded(ctx, width, reshard_after_forward)
    forward = _largest_alive(before)
    output.sum().backward()
    step = _largest_alive(before)
    del module  # only now
    return forward, step


def _forward_of_sharded(ctx: Context, width: int, reshard_after_forward: bool) -> tuple[nn.Module, torch.Tensor]:
    """A sharded layer, and what its forward returns."""
    module = nn.Linear(width, width, bias=False, device=ctx.device)
    fully_shard(module, mesh=ctx.mesh((ctx.world_size,)), reshard_after_forward=reshard_after_forward)
    return module, module(torch.ones(1, width, device=ctx.device))


def _largest_alive(before: Iterable[torch.Tensor]) -> int:
    """Return the least of some looks at storages that no tensor had before.

    A collective's own thread releases its buffers a moment after all ranks have them.
    """
    old = {tensor.untyped_storage()._cdata for tensor in before}
    seen = []
    for _ in range(10):
        gc.collect()
        storages = [tensor.untyped_storage() for tensor in _plain_tensors()]
        seen.append(max(storage.nbytes() for storage in storages if storage._cdata not in old))
        del storages
        time.sleep(0.01)
    return min(seen)


def _plain_tensors() -> list[torch.Tensor]:
    """All tensors that Python knows, but for DTensors, whose local tensors are among them."""
    return [thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor) and not isinstance(thing, DTensor)]


def held(tensors: Iterable[torch.Tensor]) -> Held:
    """What these tensors keep alive on this rank."""
    storages = [local_shard(tensor).untyped_storage() for tensor in tensors]
    nbytes = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    return Held(nbytes, frozenset(storage.device.type for storage in storages))


def replicated(ctx: Context, *, problem: Problem, memory: Memory | None = None) -> Step[Tensors]:
    """DistributedDataParallel: every rank holds everything."""
    module = DistributedDataParallel(problem_network(ctx, problem), gradient_as_bucket_view=True)
    optimizer = optimizer_for(problem, module.parameters())
    step = problem_step(problem, module, optimizer, batches_on_device(ctx, problem), module.no_sync)
    return remembering(step, module, optimizer, {} if memory is None else memory)


def zero_redundancy_optimizer(
    ctx: Context, *, problem: Problem, memory: Memory | None = None, parameters_as_bucket_view: bool = False
) -> Step[Tensors]:
    """ZeRO-1: each rank has the optimizer state of some parameters, updates them, and sends them to the others."""
    module = DistributedDataParallel(problem_network(ctx, problem), gradient_as_bucket_view=True)
    kind, arguments = optimizer_class(problem)
    optimizer = zero_redundancy()(
        module.parameters(), kind, parameters_as_bucket_view=parameters_as_bucket_view, **arguments
    )
    step = problem_step(problem, module, optimizer, batches_on_device(ctx, problem), module.no_sync)
    return remembering(step, module, optimizer, {} if memory is None else memory)
