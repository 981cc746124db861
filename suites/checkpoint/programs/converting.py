"""Checkpoints that become one file of torch.save, and files that become checkpoints; loads of what is named alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import (
    BroadcastingTorchSaveReader,
    DynamicMetaLoadPlanner,
    dcp_to_torch_save,
    torch_save_to_dcp,
)
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from pytest_gpuperf import Context
from suites.shared.inputs import integers

State = dict[str, Any]
FILE, AGAIN = "whole.pt", "again"
"""The file that a checkpoint becomes, and the folder of the checkpoint that the file becomes."""


def whole_state() -> State:
    """Tensors in dictionaries, lists, lists of these and a tuple, a scalar, and values that are no tensors."""
    tensors = [integers((5, 3), torch.float32, seed=1), integers((3, 4), torch.bfloat16, seed=2)]
    return {
        "model": {"first.weight": tensors[0], "second.weight": tensors[1], "scalar": torch.tensor(3.5)},
        "optimizer": {"groups": [{"lr": 0.25, "params": [0, 1]}, {"lr": 0.5}], "moments": [tensors[0] + 1]},
        "step": 7,
        "nested": [[3, [tensors[1] - 1, "a"]], [5], [[{"deep": tensors[0] - 1, "rate": 0.125}]]],
        "pair": (tensors[0] + 2, [1, (2,)]),
    }


def _cut(ctx: Context, value: Any, dim: int) -> Any:
    """Matrices in shards, and all else as it is."""
    if isinstance(value, dict):
        return {name: _cut(ctx, part, dim) for name, part in value.items()}
    if isinstance(value, list):
        return [_cut(ctx, part, dim) for part in value]
    if isinstance(value, torch.Tensor) and value.dim() > 1:
        mesh = ctx.mesh((ctx.world_size,))
        return distribute_tensor(value.to(ctx.device), mesh, [Shard(dim)], src_data_rank=None)
    return value


def _blank(value: Any) -> Any:
    """Other values in tensors of these shapes."""
    if isinstance(value, dict):
        return {name: _blank(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_blank(part) for part in value]
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else -1


def _gathered(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _gathered(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_gathered(part) for part in value]
    return value.full_tensor().cpu() if isinstance(value, DTensor) else value


def converted(ctx: Context, *, folder: Path) -> tuple[State, State]:
    """Ranks save; rank 0 makes one file of it, and a checkpoint of that.

    Args:
        ctx: the rank's context.
        folder: the checkpoint's; the file and the second checkpoint come into it.

    Returns:
        what ranks load of the second checkpoint, in other shards; and what rank 0 broadcasts of a file to them.
    """
    dcp.save(_cut(ctx, whole_state(), 0), checkpoint_id=folder)
    if ctx.rank == 0:
        dcp_to_torch_save(folder, folder / FILE)
        torch_save_to_dcp(folder / FILE, folder / AGAIN)
    ctx.barrier()
    loaded = _cut(ctx, _blank(whole_state()), 1)
    dcp.load(loaded, checkpoint_id=folder / AGAIN)
    if ctx.rank == 0:
        torch.save(whole_state()["model"], folder / "model.pt")
    ctx.barrier()
    # Whole on each rank: torch 2.13 cannot broadcast into a DTensor, and the ranks would part.
    sent = {name: value.to(ctx.device) for name, value in _blank(whole_state()["model"]).items()}
    dcp.load(sent, storage_reader=BroadcastingTorchSaveReader(folder / "model.pt"), planner=DynamicMetaLoadPlanner())
    return _gathered(loaded), _gathered(sent)


def named(ctx: Context, *, folder: Path, keys: set[str] | str | None) -> State:
    """What a rank loads of a checkpoint when it gives names and no tensors."""
    dcp.save(_cut(ctx, whole_state(), 1), checkpoint_id=folder)
    return _load_state_dict_from_keys(keys, checkpoint_id=folder)
