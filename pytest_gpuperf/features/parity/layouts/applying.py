"""Splits a model over ranks as a layout says, by torch's own APIs. Lives in rank processes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from pytest_gpuperf.features.parity.layouts.asked import Layout, Subject
from pytest_gpuperf.features.parity.layouts.attention import gather_attention
from pytest_gpuperf.features.parity.layouts.plans import COLUMNS
from pytest_gpuperf.features.parity.layouts.training import Shares, SplitError, list_tensors, map_nested
from pytest_gpuperf.ranks.context import Context

_SEQUENCE = 1
"""The dimension of a batch that context parallelism cuts."""


@dataclass(frozen=True)
class Applied:
    """A model that is split."""

    wrapped: nn.Module
    shares: Shares


def refuse(layout: Layout) -> None:
    """Refuses a layout that torch has no API for.

    Raises:
        SplitError: says why.
    """
    if layout.sizes["ddp"] > 1 and layout.sizes["tp"] > 1 and layout.sizes["fsdp"] == 1:
        raise SplitError("DDP takes no parameters that tensor parallelism has split: use fsdp in its place")
    if layout.sizes["ddp"] > 1 and layout.sizes["fsdp"] > 1 and layout.sizes["cp"] > 1:
        raise SplitError("ddp, fsdp and cp together are not built: leave one out")


def apply(ctx: Context, subject: Subject, layout: Layout, model: nn.Module, plan: Mapping[str, str]) -> Applied:
    """Splits a model in place.

    Args:
        ctx: of the rank.
        subject: the user's functions.
        layout: how.
        model: whole, on the rank's device.
        plan: the derived plan of tensor parallelism, if the user gave none.

    Raises:
        SplitError: an API does not take the model.
    """
    mesh = layout.mesh
    whole = ctx.mesh(tuple(mesh.values()), tuple(mesh))
    root = whole
    data: list[str] = [axis for axis in ("ddp", "fsdp", "cp") if axis in mesh]
    if "cp" in data and len(data) > 1:  # gradients are averaged, and parameters sharded, over both
        sizes = {"data": layout.shares} | ({"tp": mesh["tp"]} if "tp" in mesh else {})
        root, data = ctx.mesh(tuple(sizes.values()), tuple(sizes)), ["data"]
    if "tp" in mesh:
        _split_linears(subject, model, root["tp"] if root.ndim > 1 else root, plan)
    wrapped = model
    if data:
        over = root[tuple(data)] if root.ndim > len(data) else root
        if layout.sizes["fsdp"] > 1 or "tp" in mesh:
            _shard(model, over)
        else:
            wrapped = nn.parallel.DistributedDataParallel(model)
    return Applied(wrapped, _Dealt(ctx, layout, whole))


def _split_linears(subject: Subject, model: nn.Module, mesh: DeviceMesh, plan: Mapping[str, str]) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    given = subject.function("plan")
    styles: Any = given(model) if given is not None else {}
    if given is None:
        for name, kind in plan.items():
            styles[name] = ColwiseParallel() if kind == COLUMNS else RowwiseParallel()
    parallelize_module(model, mesh, styles)


def _shard(model: nn.Module, mesh: DeviceMesh) -> None:
    from torch.distributed.fsdp import fully_shard

    for module in list(model.modules()):
        if isinstance(module, nn.ModuleList | nn.ModuleDict):
            for child in module.children():
                if not isinstance(child, nn.ModuleList | nn.ModuleDict):
                    fully_shard(child, mesh=mesh)
    fully_shard(model, mesh=mesh)


class _Dealt(Shares):
    """Cuts batches in rows and, for context parallelism, along the sequence."""

    def __init__(self, ctx: Context, layout: Layout, mesh: DeviceMesh) -> None:
        self.averaged = layout.shares
        self._layout = layout
        self._device = ctx.device
        self._mesh = mesh
        at = {axis: mesh.get_local_rank(axis) if axis in layout.mesh else 0 for axis in layout.sizes}
        self._row = at["ddp"] * layout.sizes["fsdp"] + at["fsdp"]
        self._rows = layout.sizes["ddp"] * layout.sizes["fsdp"]
        self._turn, self._turns = at["cp"], layout.sizes["cp"]
        self._copies = layout.sizes["tp"]

    def cut(self, batch: tuple[Any, Any]) -> tuple[Any, Any]:
        tensors = list_tensors(batch)
        rows = max((len(tensor) for tensor in tensors if tensor.dim()), default=0)
        if rows < self._rows:
            raise SplitError(f"a batch of {rows} rows cannot be dealt to {self._rows} ranks")

        def mine(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.tensor_split(self._rows)[self._row] if tensor.dim() and len(tensor) == rows else tensor

        cut: tuple[Any, Any] = map_nested(mine, batch)
        # On GPUs, torch's context manager cuts the sequence.
        return cut if self._turns == 1 or self._device.type == "cuda" else self._cut_sequence(cut)

    def _cut_sequence(self, batch: tuple[Any, Any]) -> tuple[Any, Any]:
        length = self._find_length(batch)

        def mine(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.dim() <= _SEQUENCE or tensor.shape[_SEQUENCE] != length:
                return tensor
            return tensor.chunk(self._turns, _SEQUENCE)[self._turn].contiguous()

        cut: tuple[Any, Any] = map_nested(mine, batch)
        return cut

    def _find_length(self, batch: tuple[Any, Any]) -> int:
        inputs = [tensor for tensor in list_tensors(batch[0]) if tensor.dim() > _SEQUENCE]
        length = inputs[0].shape[_SEQUENCE] if inputs else 0
        if not length or length % (2 * self._turns):
            raise SplitError(
                f"context parallelism needs inputs of (batch, length, ...) with a length that {2 * self._turns} "
                f"divides, got {length}"
            )
        return length

    def total(self, value: torch.Tensor) -> torch.Tensor:
        total = value.detach().clone()
        dist.all_reduce(total)
        # Each rank of tensor parallelism has the same share.
        return total if self._copies == 1 else total // self._copies if _is_count(total) else total / self._copies

    def within(self, batch: tuple[Any, Any]) -> contextlib.AbstractContextManager[None]:
        if self._turns == 1:
            return contextlib.nullcontext()
        mesh = self._mesh["cp"] if self._mesh.ndim > 1 else self._mesh
        if self._device.type == "cuda":
            return self._make_torch_context(mesh, batch)
        return gather_attention(mesh)

    def _make_torch_context(self, mesh: DeviceMesh, batch: tuple[Any, Any]) -> contextlib.AbstractContextManager[None]:
        from torch.distributed.tensor.experimental import context_parallel

        length = self._find_length(batch)
        buffers = [t for t in list_tensors(batch) if t.dim() > _SEQUENCE and t.shape[_SEQUENCE] == length]
        return context_parallel(
            mesh, buffers=buffers, buffer_seq_dims=[_SEQUENCE] * len(buffers), no_restore_buffers=set(buffers)
        )


def _is_count(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point()
