"""A sharded module whose inputs and outputs are in containers: dataclasses, named tuples, dictionaries and lists."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from pytest_gpuperf import Context
from suites.shared.step import gradient_of

LEAVES = 8
"""Tensors that the containers hold, besides one of whole numbers."""


@dataclass
class Pair:
    """A dataclass with a list in it."""

    first: torch.Tensor
    rest: list[torch.Tensor]


class Point(NamedTuple):
    """A named tuple with a dictionary in it."""

    x: torch.Tensor
    y: dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a rank has seen."""

    dtypes: list[torch.dtype]
    """Dtypes of the tensors that came in, the one of whole numbers last."""
    kinds: list[str]
    """The containers that came in, and the number among them."""
    outputs: list[torch.Tensor]
    input_gradients: list[torch.Tensor]
    gradient: torch.Tensor
    """The weight's gradient, whole."""


class Multiplying(nn.Module):
    """Multiplies each tensor by its number, from 1 on, and by a weight."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.dtypes: list[torch.dtype] = []
        self.kinds: list[str] = []

    def forward(
        self,
        pair: Pair,
        point: Point,
        ordered: OrderedDict[str, torch.Tensor],
        mixed: tuple[torch.Tensor, int, torch.Tensor, None],
    ) -> tuple[Pair, dict[str, Any]]:
        """The products in containers of the same kinds, one of them within another."""
        leaves = [pair.first, *pair.rest, point.x, point.y["only"], ordered["b"], ordered["a"], mixed[0]]
        self.dtypes = [leaf.dtype for leaf in (*leaves, mixed[2])]
        self.kinds = [type(one).__name__ for one in (pair, pair.rest, point, point.y, ordered, mixed, mixed[1])]
        made = [leaf * self.weight * number for number, leaf in enumerate(leaves, start=1)]
        others = {
            "point": Point(made[3], {"only": made[4]}),
            "ordered": OrderedDict(b=made[5], a=made[6]),
            "mixed": (made[7], mixed[1], mixed[2], None),
        }
        return Pair(made[0], made[1:3]), others

    def multiply(self, **inputs: Any) -> tuple[Pair, dict[str, Any]]:
        """Another way in."""
        return Multiplying.forward(self, **inputs)


class _Calling(nn.Module):
    """Calls a module, which is sharded by itself, in one of several ways."""

    def __init__(self, module: Multiplying, way: str) -> None:
        super().__init__()
        self.module, self._way = module, way

    def forward(self, inputs: Mapping[str, Any]) -> tuple[Pair, dict[str, Any]]:
        """What the module returns."""
        if self._way == "by place":
            made: tuple[Pair, dict[str, Any]] = self.module(*inputs.values())
        elif self._way == "by name":
            made = self.module(**inputs)
        else:
            made = self.module.multiply(**inputs)
        return made


def multiplied(
    ctx: Context, *, way: str, leaves: list[list[torch.Tensor]], weight: torch.Tensor, policy: MixedPrecisionPolicy
) -> Seen:
    """Forward and backward of the sum of all products, whose parameters are gathered anew for backward.

    Args:
        ctx: the rank's context.
        way: how the inputs are given: ``by place``, ``by name``, or ``by name to a method``.
        leaves: each rank's tensors.
        weight: of the module.
        policy: of the module alone.
    """
    module = Multiplying(weight.to(ctx.device))
    mesh = ctx.mesh((ctx.world_size,))
    fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    register_fsdp_forward_method(module, "multiply")
    caller = _Calling(module, way)
    register_fsdp_forward_method(caller, "anything")  # which does nothing: it is not sharded
    fully_shard(caller, mesh=mesh)
    mine = [leaf.to(ctx.device).requires_grad_() for leaf in leaves[ctx.rank]]
    counts = torch.tensor([3, 5], device=ctx.device)
    inputs = {
        "pair": Pair(mine[0], mine[1:3]),
        "point": Point(mine[3], {"only": mine[4]}),
        "ordered": OrderedDict(b=mine[5], a=mine[6]),
        "mixed": (mine[7], 2, counts, None),
    }
    pair, others = caller(inputs)
    outputs = [
        *(pair.first, *pair.rest, others["point"].x, others["point"].y["only"]),
        *(*others["ordered"].values(), others["mixed"][0]),
    ]
    assert torch.equal(others["mixed"][2], counts), "whole numbers have changed"
    torch.stack([output.float() for output in outputs]).sum().backward()
    cast("FSDPModule", module).reshard()
    gradient = cast("DTensor", gradient_of(module.weight)).full_tensor()
    return Seen(
        module.dtypes,
        module.kinds,
        [output.detach().cpu() for output in outputs],
        [gradient_of(leaf).cpu() for leaf in mine],
        gradient.cpu(),
    )
