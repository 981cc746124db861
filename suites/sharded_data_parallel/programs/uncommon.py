"""FSDP2 on networks that are built or called in uncommon ways, and reductions that are sums or of whole replicas.

These settings leave the training's numbers as they are, as those of ``suites.sharded_data_parallel.programs.settings``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.utils.checkpoint import checkpoint

from pytest_gpuperf import Context
from suites.sharded_data_parallel.programs.settings import Setting, units
from suites.sharded_data_parallel.programs.stages import by_layer, local_shard
from suites.shared.problems import Network, Problem
from suites.shared.sharding import parameters_on_device
from suites.shared.step import Tensors
from suites.shared.training import batches_on_device


def _sums_only(ctx: Context, network: Network, **options: Any) -> None:
    """Every reduction is a sum, which is divided afterwards."""
    by_layer(network, **options)
    for unit in units(network):
        unit.set_gradient_divide_factor(2.0 * ctx.world_size)
        unit.set_force_sum_reduction_for_comms(True)


def _whole_replicas(ctx: Context, network: Network, **options: Any) -> None:
    """Each rank is a replica, of one shard, and the divisor is twice their number.

    In float64, or as a sum, torch 2.13 divides twice by it.
    """
    by_layer(network, **options | {"mesh": ctx.mesh((ctx.world_size, 1), ("replicate", "shard"))})
    for unit in units(network):
        unit.set_gradient_divide_factor(2.0 * ctx.world_size)


def _half_resharded_in_bfloat16(ctx: Context, network: Network, **options: Any) -> None:
    """After forward each parameter is cut over half of the ranks, in the dtype that it was gathered in.

    Of one step all numbers are whole, and have the 8 bits of bfloat16 or fewer; reductions are in float32.
    """
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    by_layer(network, reshard_after_forward=ctx.world_size // 2, mp_policy=policy, **options)
    network.register_forward_hook(lambda _, __, output: output.float())


class _ByOtherNames(nn.Module):
    """Has a layer's parameters by other names, and notes down what is assigned to it in their place."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.__dict__["notes"] = {}
        for name, value in layer.named_parameters(recurse=False):
            setattr(self, f"same_{name}", value)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, nn.Parameter):
            self.__dict__["notes"][name] = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output, by the notes."""
        notes = self.__dict__["notes"]
        return nn.functional.linear(x, notes["same_weight"], notes.get("same_bias"))


def _by_other_names(ctx: Context, network: Network, **options: Any) -> None:
    """A module within each layer shares its parameters, and computes in its place."""
    for layer in network.children():
        layer.add_module("inner", _ByOtherNames(layer))
        layer.register_forward_hook(lambda layer, inputs, _: cast("Any", layer).inner(*inputs))
    by_layer(network, **options)


class _Recomputed(nn.Module):
    """Computes a whole network again in backward, with all hooks of its units: one half of the rows, then the other."""

    def __init__(self, network: Network, *, reentrant: bool) -> None:
        super().__init__()
        self.module, self._reentrant = network, reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The network's output."""
        return torch.cat([checkpoint(self.module, rows, use_reentrant=self._reentrant) for rows in x.tensor_split(2)])


def _recomputed(ctx: Context, network: Network, *, reentrant: bool, **options: Any) -> nn.Module:
    by_layer(network, reshard_after_forward=True, **options)
    return _Recomputed(network, reentrant=reentrant)


UNCOMMON: Mapping[str, Setting] = {
    "sums only, in float32": Setting(_sums_only, times=2.0, dtype=torch.float32),
    "whole replicas and twice the divisor": Setting(
        _whole_replicas, degree=lambda world_size, name: 1, times=2.0, dtype=torch.float32
    ),
    "cut over half of the ranks in bfloat16": Setting(_half_resharded_in_bfloat16, ranks=4, dtype=torch.float32),
    "parameters of two names": Setting(_by_other_names),
    "recomputed as a whole": Setting(functools.partial(_recomputed, reentrant=False), needs="reset_iter_state"),
    "recomputed as a whole, reentrant": Setting(
        functools.partial(_recomputed, reentrant=True), needs="reset_iter_state"
    ),
}


def inferred(ctx: Context, *, problem: Problem, whole: bool) -> list[torch.Tensor]:
    """Outputs of all steps' first inputs in inference mode, each step with parameters that are 1 more than before.

    Args:
        ctx: the rank's context.
        problem: whose network and inputs these are.
        whole: whether the network's parameters may stay gathered after a forward, and not only its layer's.
    """
    network = Network(parameters_on_device(ctx, problem.parameters()))
    by_layer(network, mesh=ctx.mesh((ctx.world_size,)), reshard_after_forward=None if whole else True)
    outputs = []
    for x, _ in batches_on_device(ctx, problem):
        with torch.inference_mode():
            outputs.append(network(x[0]))
        cast("FSDPModule", network).reshard()
        with torch.no_grad():
            for value in network.parameters():
                value.add_(1)
    return outputs


def replaced_while_gathered(ctx: Context, *, problem: Problem) -> list[Tensors]:
    """The rank's shards in a state that is taken after a forward, and outputs before and after it is loaded doubled.

    Nothing is given back after the forward, so that both find all parameters gathered.
    """
    network = Network(parameters_on_device(ctx, problem.parameters()))
    by_layer(network, mesh=ctx.mesh((ctx.world_size,)), reshard_after_forward=False)
    x, _ = batches_on_device(ctx, problem)[0]
    told = []
    with torch.no_grad():
        for _ in range(2):
            output = network(x[0])
            state = network.state_dict()
            told.append({name: local_shard(value).clone() for name, value in state.items()} | {"output": output})
            doubled = {name: 2 * value for name, value in state.items()}
            network(x[0])
            network.load_state_dict(doubled)
    return told
