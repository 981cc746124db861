"""Backwards in another order than forwards, units that need nothing gathered for theirs, and who reduces what how."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard

from pytest_gpuperf import Context
from suites.sharded_data_parallel.programs.settings import Scatter, units
from suites.sharded_data_parallel.programs.stages import by_layer, local_shard
from suites.shared.problems import Network, Problem, optimizer_for, set_rate
from suites.shared.sharding import parameters_on_device
from suites.shared.step import Step, Tensors, gradient_of
from suites.shared.training import batches_on_device

ORDERS: Mapping[str, Callable[[int], list[int]]] = {
    "first one first": lambda count: list(range(count)),
    "last one first": lambda count: list(range(count))[::-1],
}
"""The microbatches in the order of their backwards, after the forwards of all of them."""


def backward_after_all(ctx: Context, *, problem: Problem, order: str, reshard: bool) -> Step[Tensors]:
    """A step with the forwards of all microbatches first, and with each backward twice, for a half of its gradients.

    Args:
        ctx: the rank's context.
        problem: what is trained.
        order: a key of ``ORDERS``.
        reshard: whether backward gathers the parameters anew.
    """
    network = Network(parameters_on_device(ctx, problem.parameters()))
    by_layer(network, mesh=ctx.mesh((ctx.world_size,)), reshard_after_forward=reshard)
    optimizer = optimizer_for(problem, network.parameters())
    coming = enumerate(batches_on_device(ctx, problem))

    def step() -> Tensors:
        number, (x, grad) = next(coming)
        x = x.detach().requires_grad_()
        optimizer.zero_grad()
        outputs = [network(microbatch) for microbatch in x]
        for index in ORDERS[order](len(outputs)):
            outputs[index].backward(grad[index] / 2, retain_graph=True)
            outputs[index].backward(grad[index] / 2)
        held = dict(network.named_parameters())
        told = {"output": torch.cat(outputs).detach(), "input gradient": gradient_of(x).flatten(0, 1)}
        told |= {f"{name} gradient": local_shard(gradient_of(value, name)).clone() for name, value in held.items()}
        set_rate(optimizer, problem.rate(number))
        optimizer.step()
        return told | {name: local_shard(value).clone() for name, value in held.items()}

    return step


class _Embedded(nn.Module):
    """A layer of embedded tokens."""

    def __init__(self, table: torch.Tensor, weight: torch.Tensor) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(table), table.shape[1], dtype=table.dtype, device=table.device)
        self.layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype, device=weight.device)
        self.embedding.load_state_dict({"weight": table})
        self.layer.load_state_dict({"weight": weight})

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The layer's output for each token."""
        output: torch.Tensor = self.layer(self.embedding(tokens))
        return output


def embedded(
    ctx: Context, *, told: Sequence[bool], table: torch.Tensor, weight: torch.Tensor, tokens: Sequence[torch.Tensor]
) -> tuple[list[bool], Tensors]:
    """Whether the embedding is gathered when the backward before its own begins, and all gradients of one, whole.

    Args:
        ctx: the rank's context.
        told: what the embedding is told of gathering in backward, before one step each.
        table: of the embedding.
        weight: of the layer.
        tokens: of each rank.
    """
    module = _Embedded(table.to(ctx.device), weight.to(ctx.device))
    mesh = ctx.mesh((ctx.world_size,))
    for unit in (module.embedding, module.layer, module):
        fully_shard(unit, mesh=mesh, reshard_after_forward=True)
    embedding = cast("FSDPModule", module.embedding)
    gathered: list[bool] = []

    def note(_: torch.Tensor) -> None:
        gathered.append(not isinstance(module.embedding.weight, DTensor))

    def watch(_: nn.Module, __: Any, output: torch.Tensor) -> None:
        output.register_hook(note)  # after the one that gathers the embedding

    module.embedding.register_forward_hook(watch)
    for value in told:
        embedding.set_unshard_in_backward(value)
        module.zero_grad()
        module(tokens[ctx.rank].to(ctx.device)).sum().backward()
    return gathered, {
        name: cast("DTensor", gradient_of(value, name)).full_tensor().cpu() for name, value in module.named_parameters()
    }


Reduction = tuple[str, bool, int]
"""The operation, whether it is in the mesh's own group, and how many elements it has."""


class _Noting(Scatter):
    """Notes down each operation, whether its group is that of the mesh, and its elements."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.seen: list[Reduction] = []
        self._group = group

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        self.seen.append((str(op).rpartition(".")[2], group is self._group, input_tensor.numel()))
        return super().__call__(output_tensor, input_tensor, group, op, async_op)


CALLS: Mapping[str, Callable[[FSDPModule], object]] = {
    "nothing": lambda root: None,
    "sums": lambda root: root.set_force_sum_reduction_for_comms(True),
    "no sums": lambda root: root.set_force_sum_reduction_for_comms(False),
    "groups of their own": lambda root: root.set_separate_reduce_scatter_group(True),
    "a group of its own": lambda root: root.set_separate_reduce_scatter_group(True, recurse=False),
    "no groups of their own": lambda root: root.set_separate_reduce_scatter_group(False),
    "no group of its own": lambda root: root.set_separate_reduce_scatter_group(False, recurse=False),
    "unused ones": lambda root: root.set_reduce_scatter_unused_params(True),
    "no unused ones": lambda root: root.set_reduce_scatter_unused_params(False),
}
"""What a root is told, and with ``their`` or ``unused`` what is within it too."""


def reductions(ctx: Context, *, problem: Problem, calls: Sequence[str]) -> list[list[Reduction]]:
    """How the root and its layer reduce their gradients after each call.

    The network skips its shortcut, which only the root has.

    Args:
        ctx: the rank's context.
        problem: whose network it is, in float32.
        calls: keys of ``CALLS``.
    """
    network = Network(parameters_on_device(ctx, problem.parameters()), skip=True)
    mesh = ctx.mesh((ctx.world_size,))
    by_layer(network, mesh=mesh)
    noting = [_Noting(mesh.get_group()) for _ in units(network)]
    for unit, notes in zip(units(network), noting, strict=True):
        unit.set_custom_reduce_scatter(cast("Any", notes))
    x, grad = batches_on_device(ctx, problem)[0]
    found = []
    for call in calls:
        CALLS[call](cast("FSDPModule", network))
        network(x[0]).backward(grad[0])
        found.append([notes.seen[-1] for notes in noting])
    return found


def with_gradients(ctx: Context) -> list[str]:
    """The parameters that have a gradient if those that are not used get one; the first layer's weight is frozen."""
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)).to(ctx.device)
    module[0].weight.requires_grad_(False)
    fully_shard(module, mesh=ctx.mesh((ctx.world_size,)))
    cast("FSDPModule", module).set_reduce_scatter_unused_params(True)
    module(torch.ones(1, 2, device=ctx.device)).sum().backward()
    return [name for name, value in module.named_parameters() if value.grad is not None]


def placed(ctx: Context, *, values: Tensors, dims: Mapping[str, int | None], weights: list[Tensors]) -> Tensors:
    """What forward has of each parameter, the rank's own part of it, and that of its gradient.

    Args:
        ctx: the rank's context.
        values: of the parameters, by name.
        dims: along which dimension each is cut; None: nothing is said of it.
        weights: what each rank multiplies the parameters by, before they are summed.
    """
    module = _Sum(values).to(ctx.device)
    by_id = {id(value): dims[name] for name, value in module.named_parameters()}

    def place(value: nn.Parameter) -> Shard | None:
        dim = by_id[id(value)]
        return None if dim is None else Shard(dim)

    fully_shard(module, mesh=ctx.mesh((ctx.world_size,)), shard_placement_fn=place)
    module({name: value.to(ctx.device) for name, value in weights[ctx.rank].items()}).backward()
    told = {f"{name} in forward": value for name, value in module.seen.items()}
    for name, value in module.named_parameters():
        told |= {name: local_shard(value), f"{name} gradient": local_shard(gradient_of(value, name))}
    return told


class _Sum(nn.Module):
    """A sum of parameters with given weights; it keeps what it sees of them."""

    def __init__(self, values: Tensors) -> None:
        super().__init__()
        self.seen: Tensors = {}
        for name, value in values.items():
            self.register_parameter(name, nn.Parameter(value.clone()))

    def forward(self, weights: Tensors) -> torch.Tensor:
        held = dict(self.named_parameters())
        self.seen = {name: value.detach().clone() for name, value in held.items()}
        return torch.stack([(held[name] * weight).sum() for name, weight in weights.items()]).sum()
