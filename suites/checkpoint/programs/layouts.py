"""How a small language model is split over ranks: in replicas, in shards, in tensors, or in two of these at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from pytest_gpuperf import Context
from suites.shared.llama import Config, Llama, load_initial_weights


@dataclass(frozen=True, slots=True)
class Layout:
    """Degrees of parallelism; their product is the number of ranks."""

    replicate: int = 1
    """Copies: DistributedDataParallel, or with shards hybrid sharding."""
    shard: int = 1
    """FSDP2."""
    tensor: int = 1
    """Tensor parallelism."""

    @property
    def ranks(self) -> int:
        """The number of ranks that it needs."""
        return self.replicate * self.shard * self.tensor

    def __str__(self) -> str:
        degrees = {"replicate": self.replicate, "shard": self.shard, "tensor": self.tensor}
        return " x ".join(f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1) or "one rank"

    def require(self, config: Config, world_size: int) -> None:
        """Checks, before anything is built, that the model can be split so on so many ranks.

        Raises:
            ValueError: the world has another size, or a tensor does not split over ``tensor`` ranks.
        """
        if self.ranks != world_size:
            raise ValueError(
                f"the layout {self} needs {self.ranks} ranks, and the world has {world_size}: change a degree"
            )
        if self.replicate > 1 and self.tensor > 1:
            raise ValueError(f"the layout {self} has replicas of split tensors, which nothing here trains: shard them")
        parts = {
            "heads": config.heads,
            "kv_heads": config.kv_heads,
            "hidden": config.hidden,
            "vocabulary": config.vocabulary,
        }
        for name, number in parts.items():
            if number % self.tensor:
                raise ValueError(
                    f"the model's {name}={number} does not split over {self.tensor} ranks of tensor parallelism: "
                    f"load the checkpoint on a number of ranks that divides {number}, or shard it with FSDP2"
                )


def tensor_styles() -> Mapping[str, ParallelStyle]:
    """How each module is split over ranks: by heads, by hidden features, by words."""
    column, row = ColwiseParallel, RowwiseParallel
    layer = {
        "attention.query": column(),
        "attention.key": column(),
        "attention.value": column(),
        "attention.output": row(),
        "feed_forward.gate": column(),
        "feed_forward.up": column(),
        "feed_forward.down": row(),
    }
    return {
        "embedding": row(input_layouts=Replicate()),
        **{f"layers.*.{name}": style for name, style in layer.items()},
        "head": column(output_layouts=Replicate()),
    }


def split_model(ctx: Context, config: Config, layout: Layout, *, dtype: torch.dtype, seed: int) -> nn.Module:
    """The model with its initial weights, split.

    Raises:
        ValueError: it cannot be split so.
    """
    layout.require(config, ctx.world_size)
    model = Llama(config, 0, 1).to(dtype)
    load_initial_weights(model, config, seed)
    model.to(ctx.device)
    mesh = ctx.mesh((layout.replicate, layout.shard, layout.tensor), ("replicate", "shard", "tensor"))
    if layout.tensor > 1:
        parallelize_module(model, mesh["tensor"], dict(tensor_styles()), src_data_rank=None)
    if layout.shard > 1:
        _fully_shard(model, mesh["replicate", "shard"] if layout.replicate > 1 else mesh["shard"])
    elif layout.replicate > 1:
        return DistributedDataParallel(model)
    return model


def _fully_shard(model: Llama, mesh: DeviceMesh) -> None:
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def split_meta_model(ctx: Context, config: Config, layout: Layout, *, dtype: torch.dtype) -> nn.Module:
    """The model without storage, sharded; its parameters are on the meta device.

    Raises:
        ValueError: it cannot be split so.
    """
    layout.require(config, ctx.world_size)
    with torch.device("meta"):
        model = Llama(config, 0, 1).to(dtype)
    mesh = ctx.mesh((layout.replicate, layout.shard), ("replicate", "shard"))
    _fully_shard(model, mesh if layout.replicate > 1 else mesh["shard"])
    return model
