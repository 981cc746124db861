"""Parameters that tensor parallelism cuts along one dimension, or not at all, and FSDP2 along this or another one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from pytest_gpuperf import Context
from suites.shared.step import Tensors, gradient_of

CUTS: Mapping[str, tuple[Placement, int]] = {
    "rows_rows": (Shard(0), 0),
    "rows_columns": (Shard(0), 1),
    "columns_rows": (Shard(1), 0),
    "columns_columns": (Shard(1), 1),
    "whole_rows": (Replicate(), 0),
    "whole_columns": (Replicate(), 1),
}
"""What tensor parallelism does to each parameter, and along which dimension FSDP2 cuts what is left of it."""


class _Sum(nn.Module):
    """A sum of parameters with given weights; it keeps what it sees of them."""

    def __init__(self, values: Tensors, tensors: DeviceMesh) -> None:
        super().__init__()
        self.seen: Tensors = {}
        self._tensors = tensors
        for name, value in values.items():
            held = distribute_tensor(value, tensors, [CUTS[name][0]], src_data_rank=None)
            self.register_parameter(name, nn.Parameter(held))

    def forward(self, weights: Tensors) -> torch.Tensor:
        """The whole sum. Weights of what all ranks hold are cut in rows, and so is its gradient."""
        total = []
        for name, value in self.named_parameters():
            assert isinstance(value, DTensor)
            self.seen[name] = value.full_tensor().detach().clone()
            cut = CUTS[name][0] if CUTS[name][0].is_shard() else Shard(0)
            weight = distribute_tensor(weights[name].to(value.dtype), self._tensors, [cut], src_data_rank=None)
            total.append((value * weight).sum().full_tensor())  # type: ignore[attr-defined]
        return torch.stack(total).sum()


def cut_twice(
    ctx: Context,
    *,
    steps: int,
    reshard: bool,
    policy: MixedPrecisionPolicy,
    values: Tensors,
    weights: list[list[Tensors]],
) -> list[Tensors]:
    """Returns the parameters that forward sees, their gradients, and the parameters after SGD, of each step and whole.

    Args:
        ctx: the rank's context.
        steps: their number.
        reshard: whether backward gathers the parameters again.
        policy: of the dtypes of computation and reduction.
        values: of all parameters, named as ``CUTS``.
        weights: of each step and each place on the axis of the batch: what parameters are multiplied by.
    """
    mesh = ctx.mesh((2, ctx.world_size // 2), ("shard", "tensors"))
    module = _Sum({name: value.to(ctx.device) for name, value in values.items()}, mesh["tensors"])
    dims = {id(value): CUTS[name][1] for name, value in module.named_parameters()}
    fully_shard(
        module,
        mesh=mesh["shard"],
        reshard_after_forward=reshard,
        mp_policy=policy,
        shard_placement_fn=lambda value: Shard(dims[id(value)]),
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0, foreach=False)
    told = []
    for of_step in weights[:steps]:
        own = {name: value.to(ctx.device) for name, value in of_step[mesh.get_local_rank("shard")].items()}
        optimizer.zero_grad()
        module(own).backward()
        optimizer.step()
        found = {f"{name} in forward": value for name, value in module.seen.items()}
        for name, value in module.named_parameters():
            for what, tensor in ((f"{name} gradient", gradient_of(value, name)), (name, value)):
                assert isinstance(tensor, DTensor)
                found[what] = tensor.full_tensor().detach().clone()
        told.append(found)
    return told
