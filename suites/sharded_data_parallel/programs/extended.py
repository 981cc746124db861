"""FSDP2 on lists of modules, replicas, several meshes, and parameters that are gathered in dtypes of their own.

These settings leave the training's numbers as they are, as those of ``suites.sharded_data_parallel.programs.settings``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils import _pytree as pytree

from pytest_gpuperf import Context
from suites.sharded_data_parallel.programs.settings import SETTINGS, Setting, units
from suites.sharded_data_parallel.programs.stages import by_layer, local_shard
from suites.sharded_data_parallel.programs.uncommon import UNCOMMON
from suites.shared.problems import Network, Problem, optimizer_for
from suites.shared.sharding import parameters_on_device
from suites.shared.step import Step, Tensors
from suites.shared.training import batches_on_device, problem_step

UNIT_OF_HIGH = 2.0**20
"""Parameters are whole numbers of at most 35 bits: a multiple of this and a rest, both of which float32 holds."""


class _InTwoParts(torch.Tensor):
    """A float64 tensor that ranks gather as two float32 ones; a size that differs from the first rank's is padded."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> _InTwoParts:
        made: _InTwoParts = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )
        made.held = inner
        return made

    def __init__(self, inner: torch.Tensor) -> None:
        pass

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch has a function in its place
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        of_held, named = pytree.tree_map_only(cls, lambda tensor: tensor.held, (args, kwargs or {}))
        made = func(*of_held, **named)
        if func in _KEPT:
            return pytree.tree_map_only(torch.Tensor, cls, made)
        return made

    def parts(self, rows: int) -> tuple[torch.Tensor, ...]:
        """The two parts, with zeros below up to so many rows."""
        high = (self.held / UNIT_OF_HIGH).floor()
        rest = self.held - UNIT_OF_HIGH * high
        padded = []
        for part in (high, rest):
            whole = part.new_zeros((rows, *part.shape[1:]), dtype=torch.float32)
            whole[: len(part)] = part
            padded.append(whole)
        return tuple(padded)

    def fsdp_post_all_gather(
        self,
        outputs: tuple[torch.Tensor, ...],
        unit: float,
        param_dtype: torch.dtype,
        *,
        out: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None:
        """The whole parameter, written into ``out`` after the first time."""
        high, rest = outputs
        whole = high.to(param_dtype) * unit + rest
        if out is None:
            return whole, (whole,)
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(out):
            out.copy_(whole[: len(out)])  # without the padding
        return None


class _OfMesh(_InTwoParts):
    """The older signature: padded to the rows of the first of the mesh's ranks."""

    def fsdp_pre_all_gather(self, mesh: DeviceMesh) -> tuple[tuple[torch.Tensor, ...], float]:
        """What is gathered, and what the other side needs to know."""
        rows = torch.tensor(len(self.held), device=self.held.device)
        torch.distributed.all_reduce(rows, torch.distributed.ReduceOp.MAX, group=mesh.get_group())
        return self.parts(int(rows)), UNIT_OF_HIGH


class _OfSize(_InTwoParts):
    """The newer signature: padded to this rank's share of the whole size."""

    def fsdp_pre_all_gather(
        self,
        mesh: DeviceMesh,
        outer_size: torch.Size,
        outer_stride: tuple[int, ...],
        module: nn.Module,
        mp_policy: MixedPrecisionPolicy,
    ) -> tuple[tuple[torch.Tensor, ...], float]:
        """What is gathered, and what the other side needs to know."""
        sizes = [value.shape for value in module.parameters(recurse=False)]
        assert outer_size in sizes, f"a parameter of {outer_size} in a module of {sizes}"
        assert outer_stride == torch.empty(outer_size, device="meta").stride(), f"{outer_stride} of {outer_size}"
        return self.parts(-(-outer_size[0] // mesh.size())), UNIT_OF_HIGH


_KEPT = {
    torch.ops.aten.as_strided.default,
    torch.ops.aten.clone.default,
    torch.ops.aten.detach.default,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.new_zeros.default,
    torch.ops.aten.slice.Tensor,
    torch.ops.aten.split.Tensor,
    torch.ops.aten.view.default,
    torch.ops.aten._to_copy.default,
}
"""Operations on a subclass that return one."""


def _of_class(kind: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., None]:
    """A way to shard a network whose weights of two dimensions are of a class; biases are gathered as they are."""

    def shard(ctx: Context, network: Network, **options: Any) -> None:
        for layer in network.children():
            layer.register_parameter("weight", nn.Parameter(kind(cast("torch.Tensor", layer.weight).detach())))
        by_layer(network, **options)

    return shard


def _with_frozen_ones(ctx: Context, network: Network, **options: Any) -> None:
    """Frozen parameters of other dtypes are gathered with the rest, and change nothing if they are right.

    One has elements as wide as the others', which float64 would round; the other one's are narrower.
    """
    offset = torch.tensor([2**60 + 1, -5, 7], device=ctx.device)
    scale = torch.tensor([0.5, 4.0, 2.0, 8.0], dtype=torch.bfloat16, device=ctx.device)
    first = cast("nn.Module", network.first)
    network.shortcut.register_parameter("offset", nn.Parameter(offset.clone(), requires_grad=False))
    first.register_parameter("scale", nn.Parameter(scale.clone(), requires_grad=False))
    network.shortcut.register_forward_hook(lambda layer, _, output: output + (cast("Any", layer).offset - offset))
    first.register_forward_hook(lambda layer, _, output: output * (cast("Any", layer).scale / scale))
    by_layer(network, **options)


def _together(ctx: Context, network: Network, **options: Any) -> None:
    """The two layers that make the output are gathered together, from the first one's forward to the last one's."""
    fully_shard([network.shortcut, cast("nn.Module", network.second)], **options)
    fully_shard(network, **options)


def _together_with_one_that_does_not_run(ctx: Context, network: Network, **options: Any) -> None:
    network.add_module("head", nn.Linear(3, 3, device=ctx.device, dtype=torch.float64))
    parts = [network.shortcut, cast("nn.Module", network.second), cast("nn.Module", network.head)]
    fully_shard(parts, **options)
    fully_shard(cast("nn.Module", network.first), **options)
    fully_shard(network, **options)


def _replicated(ctx: Context, network: Network, **options: Any) -> None:
    """FSDP2's form of DistributedDataParallel; a hidden layer is a unit of its own."""
    from torch.distributed._composable.replicate_with_fsdp import replicate

    replicate(cast("nn.Module", network.first), **options)
    replicate(network, **options)


def _failed_with_a_gather_under_way(ctx: Context, network: Network, **options: Any) -> None:
    """The first forward fails when the hidden layer's parameters are on their way, and training begins again."""
    by_layer(network, **options)
    root, first = units(network)
    root.set_modules_to_forward_prefetch([first])

    def fail(*_: object) -> None:
        raise ArithmeticError("a forward that fails")

    hook = network.shortcut.register_forward_pre_hook(fail)
    x = torch.ones(1, network.shortcut.weight.shape[1], dtype=torch.float64, device=ctx.device)
    with torch.no_grad():
        for value in network.parameters():
            value.mul_(2)  # what is on its way is of no use later
    with contextlib.suppress(ArithmeticError):
        network(x)
    hook.remove()
    root.reset_iter_state()
    with torch.no_grad():
        for value in network.parameters():
            value.div_(2)


def _without_a_mesh(ctx: Context, network: Network, mesh: DeviceMesh) -> None:
    """The mesh is that of all ranks, which torch makes: of GPUs where there are some."""
    by_layer(network, **{} if ctx.device.type == "cuda" or not torch.accelerator.is_available() else {"mesh": mesh})


def _made_without_storage(ctx: Context, network: Network, **options: Any) -> None:
    """Parameters get their storage when they are sharded, and then their numbers."""
    values = {name: value.detach().clone() for name, value in network.named_parameters()}
    network.to("meta")
    by_layer(network, **options)
    network.to_empty(device=ctx.device)
    with torch.no_grad():
        for name, value in network.named_parameters():
            assert isinstance(value, DTensor)
            value.copy_(distribute_tensor(values[name], value.device_mesh, value.placements, src_data_rank=None))


def _converted_twice(ctx: Context, network: Network, **options: Any) -> None:
    """Shards in another dtype and back: new tensors, which have to be padded anew."""
    by_layer(network, **options)
    with torch.no_grad():
        network.half()
        network.double()


def _halved_by_hooks(ctx: Context, network: Network, **options: Any) -> None:
    """A hook takes the half of each gradient as soon as it is the mean of all ranks, once in a step."""
    by_layer(network, **options)

    def halve(value: torch.Tensor) -> None:
        assert value.grad is not None
        value.grad /= 2

    for value in network.parameters():
        value.register_post_accumulate_grad_hook(halve)


def _in_two_ways(ctx: Context, network: Network, **options: Any) -> None:
    """Weights are cut over all ranks, and biases over those of one of two replicas."""
    from torch.distributed.fsdp._fully_shard._fsdp_common import HSDPMeshInfo, ShardPlacementResult

    mesh = ctx.mesh((2, ctx.world_size // 2), ("replicate", "shard"))
    replicas = HSDPMeshInfo(mesh, shard_mesh_dim=1, replicate_mesh_dim=0)

    def place(value: nn.Parameter) -> ShardPlacementResult | None:
        return ShardPlacementResult(Shard(0), replicas) if value.dim() == 1 else None

    by_layer(network, shard_placement_fn=cast("Any", place), **options)


class _Parts(Network):
    """Returns what it would add up, in a dictionary."""

    def forward(self, x: torch.Tensor) -> Any:
        """Outputs of the shortcut and of the hidden layers."""
        first, second = cast("nn.Module", self.first), cast("nn.Module", self.second)
        return {"short": self.shortcut(x), "others": [second(torch.relu(first(x))), len(x)]}


class _Added(nn.Module):
    """Adds up what a network returns."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.module = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: Any = self.module(x)
        added: torch.Tensor = output["short"] + output["others"][0]
        return added


def _outputs_in_a_dictionary(ctx: Context, network: Network, **options: Any) -> nn.Module:
    network.__class__ = _Parts
    by_layer(network, reshard_after_forward=True, **options)
    return _Added(network)


def _resharded(ctx: Context, network: Network, **options: Any) -> None:
    """All parameters are let go of after each forward: else torch 2.13 computes with the root's old ones later."""
    by_layer(network, reshard_after_forward=True, **options)


EXTENDED: Mapping[str, Setting] = {
    "outputs in a dictionary": Setting(_outputs_in_a_dictionary),
    "evaluated before each update": Setting(_resharded, evaluates=True),
    "without a mesh": Setting(_without_a_mesh),
    "made without storage": Setting(_made_without_storage),
    "converted twice": Setting(_converted_twice),
    "halved by hooks": Setting(_halved_by_hooks, times=2.0),
    "in two ways": Setting(
        _in_two_ways,
        degree=lambda world_size, name: world_size // 2 if name.endswith("bias") else world_size,
        ranks=4,
        needs="reset_iter_state",
    ),
    "parts gathered by the mesh": Setting(_of_class(_OfMesh)),
    "parts gathered by the size": Setting(_of_class(_OfSize)),
    "frozen ones of other dtypes": Setting(_with_frozen_ones, needs="reset_iter_state"),
    "modules together": Setting(_together),
    "modules together, one unused": Setting(_together_with_one_that_does_not_run, needs="reset_iter_state"),
    "replicated": Setting(_replicated, dim=lambda name, dims: None, needs="reset_iter_state"),
    "failed with a gather under way": Setting(_failed_with_a_gather_under_way, needs="reset_iter_state"),
}
ALL: Mapping[str, Setting] = {**SETTINGS, **EXTENDED, **UNCOMMON}


def configured(ctx: Context, *, problem: Problem, setting: str) -> Step[Tensors]:
    """Training of the problem's network, which is sharded by a setting.

    Args:
        ctx: the rank's context.
        problem: what is trained.
        setting: a key of ``ALL``.
    """
    chosen = ALL[setting]
    skips = chosen.skips and ctx.rank == ctx.world_size - 1
    network = Network(parameters_on_device(ctx, problem.parameters()), skip=skips)
    module = chosen.shard(ctx, network, mesh=ctx.mesh((ctx.world_size,))) or network
    batches = [(x, grad * chosen.times) for x, grad in batches_on_device(ctx, problem)]
    optimizer = optimizer_for(problem, module.parameters(), foreach=False)  # CUDA's loop refuses a mix of splits
    if chosen.evaluates:
        optimizer.register_step_pre_hook(lambda *_: _evaluate(network, batches[0][0][0]))
    return problem_step(problem, module, optimizer, batches, lambda: chosen.accumulating(network), local_shard)


@torch.no_grad()
def _evaluate(network: Network, x: torch.Tensor) -> None:
    network.eval()
    network(x)
    network.train()


class _Each(nn.Module):
    """Returns the output of each layer for the same input; the first one is called once more than the others."""

    def __init__(self, weights: list[torch.Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(weight.shape[1], weight.shape[0], bias=False) for weight in weights)
        for layer, weight in zip(self.layers, weights, strict=True):
            layer.load_state_dict({"weight": weight})

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [layer(x) for layer in (self.layers[0], *self.layers)]


def typed_together(
    ctx: Context, *, x: torch.Tensor, weights: list[torch.Tensor], policy: MixedPrecisionPolicy
) -> list[torch.Tensor]:
    """The outputs of layers that are sharded together, by a policy that the whole does not have."""
    module = _Each(weights).to(ctx.device)
    mesh = ctx.mesh((ctx.world_size,))
    fully_shard(list(module.layers), mesh=mesh, mp_policy=policy)
    fully_shard(module, mesh=mesh)
    outputs: list[torch.Tensor] = module(x.to(ctx.device))
    return [output.detach().cpu() for output in outputs]
