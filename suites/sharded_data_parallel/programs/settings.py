"""FSDP2's settings one by one: where parameters are cut, when they are gathered, and how gradients are reduced.

Each setting leaves the training's numbers as they are. It shards a problem's network in its own way, and the step
is that of ``suites.shared.training.problem_step``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
    share_comm_ctx,
)
from torch.distributed.tensor import Shard

from pytest_gpuperf import Context
from suites.sharded_data_parallel.programs.stages import by_layer
from suites.shared.problems import Network, Problem
from suites.shared.sharding import parameters_on_device
from suites.shared.training import batches_on_device


def units(module: nn.Module) -> list[FSDPModule]:
    """All modules that ``fully_shard`` was applied to."""
    return [unit for unit in module.modules() if isinstance(unit, FSDPModule)]


@contextlib.contextmanager
def without_reduction(module: nn.Module) -> Iterator[None]:
    """Gradients of this microbatch stay on the rank, whole."""
    for unit in units(module):
        unit.set_requires_gradient_sync(False, recurse=False)
        unit.set_requires_all_reduce(False, recurse=False)
    yield
    for unit in units(module):
        unit.set_requires_gradient_sync(True, recurse=False)
        unit.set_requires_all_reduce(True, recurse=False)


@contextlib.contextmanager
def kept_gathered(module: nn.Module) -> Iterator[None]:
    """Parameters stay gathered from this microbatch to the next one, and gradients stay on the rank."""
    root = cast("FSDPModule", module)
    root.set_requires_gradient_sync(False)
    root.set_reshard_after_backward(False, recurse=True)
    root.set_is_last_backward(False)
    yield
    root.set_requires_gradient_sync(True)
    root.set_reshard_after_backward(True, recurse=True)
    root.set_is_last_backward(True)


@contextlib.contextmanager
def summed_by_shard(module: nn.Module) -> Iterator[None]:
    """Gradients of this microbatch are summed over the ranks of a replica, and wait for the other replicas."""
    for unit in units(module):
        unit.set_requires_all_reduce(False, recurse=False)
    yield
    for unit in units(module):
        unit.set_requires_all_reduce(True, recurse=False)


Accumulating = Callable[[nn.Module], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Setting:
    """A way to shard a network, and what it changes besides."""

    shard: Callable[..., nn.Module | None]
    """Called as ``shard(ctx, network, mesh=...)``; it may return a module that holds the network."""
    accumulating: Accumulating = without_reduction
    """Around every microbatch but the last one."""
    dim: Callable[[str, int], int | None] = lambda name, dims: 0
    """Along which dimension a parameter of this name and so many dimensions is cut; None: it is whole on all ranks."""
    degree: Callable[[int, str], int] = lambda world_size, name: world_size
    """Over how many neighbouring ranks a parameter of this name is cut."""
    times: float = 1.0
    """Factor of the output gradients; a divisor that is larger by as much cancels it."""
    needs: str = ""
    """The method of ``FSDPModule`` that older versions of torch do not have."""
    skips: bool = False
    """Whether the last rank does not use the shortcut."""
    evaluates: bool = False
    """Whether there is a forward without a backward before each update."""
    ranks: int = 2
    """The fewest that show it."""
    dtype: torch.dtype = torch.float64
    """The dtype of the training; in float32 gloo itself takes the mean, and in float64 torch divides a sum."""


def _last_dimension(ctx: Context, network: Network, **options: Any) -> None:
    """Nothing is said of biases, and weights are cut along their last dimension, which counts as -1."""
    by_layer(network, shard_placement_fn=lambda value: None if value.dim() == 1 else Shard(-1), **options)


def _averaged(gradient: torch.Tensor) -> torch.Tensor:
    mean = gradient.clone()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


def _one_parameter_ignored(ctx: Context, network: Network, **options: Any) -> None:
    """The shortcut stays whole on all ranks, and its gradient is averaged by a hook."""
    by_layer(network, ignored_params={network.shortcut.weight}, **options)
    network.shortcut.weight.register_hook(_averaged)


def _half_resharded(ctx: Context, network: Network, **options: Any) -> None:
    """After forward each parameter is cut over half of the ranks; on two ranks over both."""
    half = ctx.world_size // 2
    by_layer(network, reshard_after_forward=half if half > 1 else True, **options)


def _changed_after(ctx: Context, network: Network, **options: Any) -> None:
    """Sharded with one choice, and then set to the other one; the first layer by itself."""
    by_layer(network, reshard_after_forward=True, **options)
    root, first = cast("FSDPModule", network), cast("FSDPModule", network.first)
    root.set_reshard_after_forward(False, recurse=False)
    first.set_reshard_after_forward(True, recurse=True)


def _backward_without_gathering(ctx: Context, network: Network, **options: Any) -> None:
    """Parameters are still gathered when backward begins: it need not do that."""
    by_layer(network, reshard_after_forward=False, **options)
    for unit in units(network):
        unit.set_unshard_in_backward(False)


def _gathered_by_hand(ctx: Context, network: Network, **options: Any) -> None:
    """All is gathered before the forward begins, and the first layer is cut again when it has ended."""
    by_layer(network, **options)
    root, first = units(network)

    def gather(*_: object) -> None:
        handle = first.unshard(async_op=True)
        root.unshard()
        assert handle is not None
        handle.wait()

    def cut(*_: object) -> None:
        first.reshard()

    network.register_forward_pre_hook(gather)
    network.register_forward_hook(cut)


def _twice_the_divisor(ctx: Context, network: Network, **options: Any) -> None:
    by_layer(network, **options)
    for unit in units(network):
        unit.set_gradient_divide_factor(2.0 * ctx.world_size)


def _sums_only(ctx: Context, network: Network, **options: Any) -> None:
    """Every reduction is a sum, which is divided before or afterwards."""
    _twice_the_divisor(ctx, network, **options)
    for unit in units(network):
        unit.set_force_sum_reduction_for_comms(True)


def _replicas_by_a_hook(ctx: Context, network: Network, **options: Any) -> None:
    """Two copies of the shards, whose gradients a hook averages."""
    mesh = ctx.mesh((2, ctx.world_size // 2), ("replicate", "shard"))
    by_layer(network, **options | {"mesh": mesh["shard"]})

    def average(reduced: torch.Tensor) -> None:
        dist.all_reduce(reduced, group=mesh.get_group("replicate"))
        reduced.div_(2)

    for unit in units(network):
        unit.set_all_reduce_hook(average)


def _replicas_and_half_the_divisor(ctx: Context, network: Network, **options: Any) -> None:
    """Two copies of the shards, and as a divisor the ranks of one of them."""
    by_layer(network, **options | {"mesh": _replicas(ctx)})
    for unit in units(network):
        unit.set_gradient_divide_factor(ctx.world_size / 2)


def _replicas_and_a_hook(ctx: Context, network: Network, **options: Any) -> None:
    """Two copies of the shards, of whose averages a hook takes the half."""
    by_layer(network, **options | {"mesh": _replicas(ctx)})

    def halve(averaged: torch.Tensor) -> None:
        averaged.div_(2)

    for unit in units(network):
        unit.set_all_reduce_hook(halve)


def _replicas(ctx: Context) -> DeviceMesh:
    return ctx.mesh((2, ctx.world_size // 2), ("replicate", "shard"))


class _Gather:
    """An all-gather of our own: each rank's piece by a broadcast."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        size = group.size()
        pieces = list(output_tensor.chunk(size))
        pieces[group.rank()].copy_(input_tensor)
        last: dist.Work | None = None
        for rank, piece in enumerate(pieces):
            if last is not None:
                last.wait()
            last = dist.broadcast(piece, group=group, group_src=rank, async_op=True)
        return last


class Scatter:
    """A reduce-scatter of our own: an all-reduce, of which the rank keeps its piece."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        whole = input_tensor.clone()
        dist.all_reduce(whole, op=op, group=group)
        output_tensor.copy_(whole.chunk(group.size())[group.rank()])
        return None


def _own_collectives(ctx: Context, network: Network, **options: Any) -> None:
    by_layer(network, **options)
    for unit in units(network):
        unit.set_custom_all_gather(cast("Any", _Gather()))
        unit.set_custom_reduce_scatter(cast("Any", Scatter()))


class _Predicting(nn.Module):
    """Calls another method of the network than ``forward``."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.module = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = cast("Any", self.module).predict(x)
        return output


class _Network(Network):
    """A network with a second way in."""

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs."""
        return Network.forward(self, x)


def _another_method(ctx: Context, network: Network, **options: Any) -> nn.Module:
    network.__class__ = _Network
    by_layer(network, **options)
    register_fsdp_forward_method(network, "predict")
    return _Predicting(network)


def _roots_that_share_streams(ctx: Context, network: Network, **options: Any) -> None:
    """Each layer is a root, as the stages of a pipeline are."""
    for layer in network.children():
        fully_shard(layer, **options)
    share_comm_ctx(units(network))


def _begun_again(ctx: Context, network: Network, **options: Any) -> None:
    """The first forward fails in the middle, and training begins again."""
    by_layer(network, **options)

    def fail(*_: object) -> None:
        raise ArithmeticError("a forward that fails")

    assert network.second is not None
    hook = network.second.register_forward_pre_hook(fail)
    features = network.shortcut.weight.shape[1]
    with contextlib.suppress(ArithmeticError):
        network(torch.ones(1, features, dtype=network.shortcut.weight.dtype, device=ctx.device))
    hook.remove()
    cast("FSDPModule", network).reset_iter_state()


def _own_group_of_reductions(ctx: Context, network: Network, **options: Any) -> None:
    """Gradients are reduced in a process group of their own, with two buffers at once."""
    by_layer(network, **options)
    root = cast("FSDPModule", network)
    root.set_separate_reduce_scatter_group(True, recurse=True)
    root.set_reduce_scatter_max_input_buffers(2, recurse=True)


def _unused_on_one_rank(ctx: Context, network: Network, **options: Any) -> None:
    by_layer(network, **options)
    cast("FSDPModule", network).set_reduce_scatter_unused_params(True, recurse=True)


def _last(name: str, dims: int) -> int:
    return dims - 1


def _half(world_size: int, name: str) -> int:
    return world_size // 2


SETTINGS: Mapping[str, Setting] = {
    "cut along the last dimension": Setting(_last_dimension, dim=_last),
    "a parameter ignored": Setting(
        _one_parameter_ignored, dim=lambda name, dims: None if name == "shortcut.weight" else 0
    ),
    "cut over half of the ranks after forward": Setting(_half_resharded),
    "resharding set afterwards": Setting(_changed_after),
    "gathered between microbatches": Setting(_changed_after, kept_gathered),
    "backward without gathering": Setting(_backward_without_gathering),
    "gathered by hand": Setting(_gathered_by_hand),
    "twice the divisor": Setting(_twice_the_divisor, times=2.0),
    "sums only": Setting(_sums_only, times=2.0),
    "replicas by a hook": Setting(_replicas_by_a_hook, degree=_half),
    "replicas and half the divisor": Setting(
        _replicas_and_half_the_divisor, degree=_half, times=0.5, ranks=4, dtype=torch.float32
    ),
    "replicas and a hook": Setting(_replicas_and_a_hook, summed_by_shard, degree=_half, times=2.0, ranks=4),
    "collectives of our own": Setting(_own_collectives, needs="set_custom_all_gather"),
    "another method than forward": Setting(_another_method),
    "roots that share streams": Setting(_roots_that_share_streams),
    "begun again after a failure": Setting(_begun_again, needs="reset_iter_state"),
    "a group for reductions": Setting(_own_group_of_reductions, needs="set_separate_reduce_scatter_group"),
    "unused on one rank": Setting(_unused_on_one_rank, needs="set_reduce_scatter_unused_params", skips=True),
}


def reduced_apart(ctx: Context, *, problem: Problem, recurse: bool) -> list[str]:
    """Names of the parameters that have a sharded gradient once only the root waits with its reduction, or all do."""
    network = Network(parameters_on_device(ctx, problem.parameters()))
    by_layer(network, mesh=ctx.mesh((ctx.world_size,)))
    cast("FSDPModule", network).set_requires_gradient_sync(False, recurse=recurse)
    x, grad = batches_on_device(ctx, problem)[0]
    network(x[0]).backward(grad[0])
    return [name for name, value in network.named_parameters() if value.grad is not None]


def frozen_later(ctx: Context, *, problem: Problem) -> list[list[str]]:
    """Names of the parameters that get a gradient: before the first layer is frozen, while it is, and afterwards."""
    network = Network(parameters_on_device(ctx, problem.parameters()))
    by_layer(network, mesh=ctx.mesh((ctx.world_size,)))
    trained = []
    for frozen, (x, grad) in zip((False, True, False), batches_on_device(ctx, problem), strict=True):
        assert network.first is not None
        network.first.requires_grad_(not frozen)
        network.zero_grad()
        network(x[0]).backward(grad[0])
        trained.append([name for name, value in network.named_parameters() if value.grad is not None])
    return trained


def typed(
    ctx: Context, *, x: torch.Tensor, weight: torch.Tensor, policy: MixedPrecisionPolicy
) -> tuple[torch.dtype, torch.Tensor]:
    """The dtype in which a sharded layer gets its input, and what the layer returns."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device=ctx.device)
    with torch.no_grad():
        layer.weight.copy_(weight)
    fully_shard(layer, mesh=ctx.mesh((ctx.world_size,)), mp_policy=policy)
    seen: list[torch.dtype] = []
    layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    output: torch.Tensor = layer(x.to(ctx.device))
    return seen[0], output.detach().cpu()
