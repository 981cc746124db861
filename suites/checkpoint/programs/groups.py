"""Checkpoints that some of the ranks make, and tensors that only some of the ranks have.

Rank 0 is none of them: who takes a rank's place in a group for its number in the world addresses another one.
"""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard, distribute_tensor

from pytest_gpuperf import Context
from suites.shared.inputs import integers

State = dict[str, Any]
MEMBERS = (1, 2)
"""The ranks of the group, of three."""
WHOLE = {"rows": (5, 3), "one": (1, 4), "replica": (2, 3)}
"""Shapes of what the group's ranks save; of ``one`` the second has nothing if it is cut into rows."""


def wholes() -> dict[str, torch.Tensor]:
    """What the group saves, whole."""
    return {name: integers(shape, torch.float32, seed=number) for number, (name, shape) in enumerate(WHOLE.items())}


def _state(ctx: Context, mesh: DeviceMesh, dim: int, *, blank: bool) -> State:
    """Two tensors in shards, one that all have, and a tensor and a value of the rank's own."""
    factor = 0 if blank else 1
    whole = {name: factor * value.to(ctx.device) for name, value in wholes().items()}
    state: State = {
        name: whole[name] if name == "replica" else distribute_tensor(whole[name], mesh, [Shard(dim)]) for name in whole
    }
    own = torch.full((2 + ctx.rank,), factor * (3.0 + ctx.rank), device=ctx.device)
    return {**state, f"own {ctx.rank}": own, "nested": {f"value {ctx.rank}": factor * (7 + ctx.rank), "common": factor}}


def _local(state: State) -> State:
    local = {name: value.to_local() if isinstance(value, DTensor) else value for name, value in state.items()}
    return {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in local.items()}


def of_a_group(ctx: Context, *, folder: Path, background: bool) -> list[State]:
    """What each rank of the group loads of what it has saved with the others: into other shards, and by names.

    Meanwhile rank 0 saves alone, under the same names.

    Args:
        ctx: the rank's context.
        folder: for both checkpoints.
        background: whether a thread of each rank saves.
    """
    group = dist.new_group(list(MEMBERS), backend="gloo")
    if ctx.rank not in MEMBERS:
        saved = {name: -value for name, value in wholes().items()}
        loaded = {name: torch.zeros_like(value) for name, value in saved.items()}
        dcp.save(saved, checkpoint_id=folder / "alone", no_dist=True)
        dcp.load(loaded, checkpoint_id=folder / "alone", no_dist=True)
        return [loaded]
    assert isinstance(group, dist.ProcessGroup)
    mesh = DeviceMesh.from_group(group, ctx.device.type)
    state = _state(ctx, mesh, 0, blank=False)
    if background:
        saving = dcp.async_save(state, checkpoint_id=folder / "group", process_group=group)
        assert isinstance(saving, Future)
        saving.result()
    else:
        dcp.save(state, checkpoint_id=folder / "group", process_group=group)
    loaded = _state(ctx, mesh, 1, blank=True)
    dcp.load(loaded, checkpoint_id=folder / "group", process_group=group)
    keys = {"rows", f"own {ctx.rank}", f"nested.value {ctx.rank}"}
    named = _load_state_dict_from_keys(keys, checkpoint_id=folder / "group", process_group=group)
    return [_local(loaded), named]


PAIRS: dict[str, tuple[tuple[int, ...], tuple[Placement, ...]]] = {
    "of the last two": ((1, 2), (Shard(0),)),
    "of the outer two": ((2, 0), (Shard(1),)),
    "of one": ((1,), (Shard(0),)),
}
"""Ranks that have a tensor, and how they share it; the second pair has the higher rank first."""
OTHERS: dict[str, tuple[tuple[int, ...], tuple[Placement, ...]]] = {
    "of the last two": ((0, 1), (Shard(1),)),
    "of the outer two": ((1, 2), (Shard(0),)),
    "of one": ((2, 0), (Shard(1),)),
}
"""Ranks that load it, and how they share it."""


def on_parts_of_the_world(ctx: Context, *, folder: Path, whole: torch.Tensor) -> dict[str, torch.Tensor]:
    """All ranks save tensors that some of them share, and load them into tensors that others share.

    Args:
        ctx: the rank's context.
        folder: for the checkpoint.
        whole: what each of the tensors is a multiple of.

    Returns:
        the rank's shards of those that it has a part of.
    """

    def shared(of: dict[str, tuple[tuple[int, ...], tuple[Placement, ...]]], factor: int) -> State:
        state: State = {}
        for number, (name, (ranks, placements)) in enumerate(of.items(), 1):
            mesh = DeviceMesh(ctx.device.type, torch.tensor(ranks))
            value = factor * number * whole.to(ctx.device)
            state[name] = distribute_tensor(value, mesh, placements, src_data_rank=None)
        return state

    dcp.save(shared(PAIRS, 1), checkpoint_id=folder)
    loaded = shared(OTHERS, 0)
    dcp.load(loaded, checkpoint_id=folder)
    return {name: value.to_local().cpu() for name, value in loaded.items() if ctx.rank in OTHERS[name][0]}
