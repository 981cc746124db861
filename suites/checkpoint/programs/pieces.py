"""Tensors of which a rank has several pieces, as tables that are dealt out in blocks; and loads into other pieces."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor._shards_wrapper import LocalShardsWrapper

from pytest_gpuperf import Context
from suites.shared.step import Tensors

Block = tuple[int, int]
"""Rows and columns of a piece; those at the tensor's end may have fewer."""


def dealt(ctx: Context, whole: torch.Tensor, block: Block) -> DTensor:
    """A matrix in blocks, which are dealt to the ranks one after the other, the last one first."""
    corners = itertools.product(*(range(0, size, step) for size, step in zip(whole.shape, block, strict=True)))
    own = [corner for number, corner in enumerate(corners) if number % ctx.world_size == ctx.rank][::-1]
    pieces = [
        whole[row : row + block[0], column : column + block[1]].to(ctx.device, copy=True).contiguous()
        for row, column in own
    ]
    local: Any = LocalShardsWrapper(pieces, [tuple(corner) for corner in own])
    mesh = ctx.mesh((ctx.world_size,))
    return DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride())


def _put_together(ctx: Context, tensor: DTensor) -> torch.Tensor:
    """A rank's pieces at their places, and -1 elsewhere."""
    found = torch.full(tuple(tensor.shape), -1, dtype=tensor.dtype)
    local: Any = tensor.to_local()
    for piece, (row, column) in zip(local.local_shards(), local.local_offsets(), strict=True):
        found[row : row + piece.shape[0], column : column + piece.shape[1]] = piece.cpu()
    return found


def in_pieces(ctx: Context, *, whole: torch.Tensor, of: Block, to: Block, folder: Path) -> Tensors:
    """Saves a matrix in blocks; returns what loads of it into blocks of another size, into shards, and whole.

    Args:
        ctx: the rank's context.
        whole: the matrix; it is saved in shards, too.
        of: the blocks that are saved.
        to: the blocks that are loaded.
        folder: for the checkpoint.
    """
    mesh = ctx.mesh((ctx.world_size,))
    shards = distribute_tensor(whole.to(ctx.device), mesh, [Shard(1)], src_data_rank=None)
    dcp.save({"a": dealt(ctx, whole, of), "b": dealt(ctx, whole, of), "c": shards}, checkpoint_id=folder)
    blank = torch.full_like(whole, -1)
    state: dict[str, Any] = {
        "a": dealt(ctx, blank, to),
        "b": distribute_tensor(blank.to(ctx.device), mesh, [Shard(0)], src_data_rank=None),
        "c": dealt(ctx, blank, to),
    }
    dcp.load(state, checkpoint_id=folder)
    again: dict[str, Any] = {"a": blank.to(ctx.device, copy=True)}
    dcp.load(again, checkpoint_id=folder)
    return {
        "blocks of blocks": _put_together(ctx, state["a"]),
        "blocks of shards": _put_together(ctx, state["c"]),
        "shards of blocks": state["b"].full_tensor().cpu(),
        "whole": again["a"].cpu(),
    }
