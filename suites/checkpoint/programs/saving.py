"""torch.distributed.checkpoint's ways to save and load: planners, writers' threads and files, groups of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from pytest_gpuperf import Context
from suites.checkpoint.programs.training import Setup, State, Training
from suites.checkpoint.programs.transforming import Counting, registry
from suites.shared.inputs import integers, rank_input
from suites.shared.sharding import shard
from suites.shared.training import Packed

Save = Callable[[Context, Path, State], object]


OF_META = (("rows", (5, 3), torch.float32), ("one", (1, 4), torch.bfloat16), ("three", (3, 2, 3), torch.int64))
"""Names, shapes and dtypes of what is loaded into tensors without storage; of ``one`` the last rank has nothing."""


def _by_folder(ctx: Context, folder: Path, state: State) -> object:
    return dcp.save(state, checkpoint_id=folder)


def _load_by_folder(ctx: Context, folder: Path, state: State) -> object:
    return dcp.load(state, checkpoint_id=folder)


def _by_threads(ctx: Context, folder: Path, state: State) -> object:
    """Two threads write a file for each tensor, and look no byte ahead."""
    writer = dcp.FileSystemWriter(
        folder, thread_count=2, single_file_per_rank=False, per_thread_copy_ahead=1, sync_files=False
    )
    return dcp.save(state, storage_writer=writer)


def _by_sizes(ctx: Context, folder: Path, state: State) -> object:
    """Three threads write a file each, of about the same size."""
    return dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, thread_count=3))


def _by_lowest_rank(ctx: Context, folder: Path, state: State) -> object:
    """The lowest rank that has a tensor writes it."""
    return dcp.save(state, checkpoint_id=folder, planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True))


def _by_address(ctx: Context, folder: Path, state: State) -> object:
    """Fsspec writes, as into a store of objects."""
    return dcp.save(state, checkpoint_id=folder.as_uri())


def _load_by_address(ctx: Context, folder: Path, state: State) -> object:
    return dcp.load(state, checkpoint_id=folder.as_uri())


def _in_group(ctx: Context, folder: Path, state: State) -> object:
    return dcp.save(state, checkpoint_id=folder, process_group=dist.new_group(backend="gloo"))


def _load_in_group(ctx: Context, folder: Path, state: State) -> object:
    return dcp.load(state, checkpoint_id=folder, process_group=dist.new_group(backend="gloo"))


def _alone(ctx: Context, folder: Path, state: State) -> object:
    """Saves each rank separately, into its own folder."""
    return dcp.save(state, checkpoint_id=folder / str(ctx.rank), no_dist=True)


def _load_alone(ctx: Context, folder: Path, state: State) -> object:
    return dcp.load(state, checkpoint_id=folder / str(ctx.rank), no_dist=True)


def _cached(ctx: Context, folder: Path, state: State) -> object:
    """The plan of a first save serves a second one, of other numbers."""
    doubled = {
        part: {name: 2 * value for name, value in values.items()} if part == "model" else values
        for part, values in state.items()
    }
    dcp.save(doubled, checkpoint_id=folder / "first", planner=DefaultSavePlanner(enable_plan_caching=True))
    return dcp.save(state, checkpoint_id=folder, planner=DefaultSavePlanner(enable_plan_caching=True))


class Held:
    """A state that gives itself to a save, and takes over what a load has found."""

    def __init__(self, state: State) -> None:
        self._state = state

    def state_dict(self) -> State:
        """The state, in another dictionary than its own."""
        return {part: dict(value) if isinstance(value, dict) else value for part, value in self._state.items()}

    def load_state_dict(self, state_dict: State) -> None:
        """Takes over what was loaded."""
        self._state.update(state_dict)


def _objects(state: State) -> dict[str, Held]:
    """An object for each part, beside the others."""
    return {f"of {part}": Held({part: value}) for part, value in state.items()}


def _held(ctx: Context, folder: Path, state: State) -> object:
    return dcp.save(_objects(state), checkpoint_id=folder)


def _load_held(ctx: Context, folder: Path, state: State) -> object:
    objects = _objects(state)
    dcp.load(objects, checkpoint_id=folder)
    for held in objects.values():
        state.update(held.state_dict())
    return None


class Beneath(DefaultSavePlanner):
    """Saves all below another name."""

    def set_up_planner(self, state_dict: State, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        """Puts the state there."""
        super().set_up_planner({"kept": state_dict}, storage_meta, is_coordinator)


class FromBeneath(DefaultLoadPlanner):
    """Loads what is below another name."""

    def set_up_planner(self, state_dict: State, metadata: Any = None, is_coordinator: bool = False) -> None:
        """Looks for the state there."""
        super().set_up_planner({"kept": state_dict}, metadata, is_coordinator)


def _beneath(ctx: Context, folder: Path, state: State) -> object:
    return dcp.save(state, checkpoint_id=folder, planner=Beneath())


def _load_beneath(ctx: Context, folder: Path, state: State) -> object:
    return dcp.load(state, checkpoint_id=folder, planner=FromBeneath())


def _transformed(ctx: Context, folder: Path, state: State) -> object:
    """What is written is no longer what torch.save writes."""
    writer = dcp.FileSystemWriter(folder, _extensions=[Counting(200)])
    return dcp.save(state, storage_writer=writer)


def _load_transformed(ctx: Context, folder: Path, state: State) -> object:
    return dcp.load(state, storage_reader=dcp.FileSystemReader(folder, _extension_registry=registry()))


@dataclass(frozen=True, slots=True)
class SavingWay:
    """How a state is saved, and how it is loaded."""

    save: Save
    load: Save = _load_by_folder
    replicas: bool = False
    """Whether it is for states that all ranks hold whole."""


WAYS: Mapping[str, SavingWay] = {
    "a folder": SavingWay(_by_folder),
    "threads": SavingWay(_by_threads),
    "files of about one size": SavingWay(_by_sizes),
    "the lowest rank": SavingWay(_by_lowest_rank, replicas=True),
    "an address": SavingWay(_by_address, _load_by_address),
    "a group": SavingWay(_in_group, _load_in_group),
    "alone": SavingWay(_alone, _load_alone, replicas=True),
    "a cached plan": SavingWay(_cached),
    "planners of your own": SavingWay(_beneath, _load_beneath),
    "an object": SavingWay(_held, _load_held),
    "transformed": SavingWay(_transformed, _load_transformed),
}


def saved_and_loaded(ctx: Context, *, job: Setup, folder: Path, way: str) -> tuple[Packed, Packed]:
    """What a training has after a step, and what one of other weights has when it has loaded that.

    Args:
        ctx: the rank's context.
        job: what is trained.
        folder: for the checkpoint.
        way: a key of ``WAYS``.
    """
    first = Training(ctx, job, initial=job.seed)
    first.train(1)
    WAYS[way].save(ctx, folder, first.state())
    second = Training(ctx, job, initial=job.seed + 1)
    state = second.state()
    WAYS[way].load(ctx, folder, state)
    second.restore(state)
    return first.contents(), second.contents()


def in_part(ctx: Context, *, folder: Path, allow: bool) -> dict[str, Any]:
    """Loads two tensors of which the checkpoint has one, and a value, under names of one level."""
    save, load = (
        DefaultSavePlanner(flatten_state_dict=False),
        # With shards flattened, as is the default, torch 2.13 puts values into a copy, and what was asked for stays.
        DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False, allow_partial_load=allow),
    )
    dcp.save({"kept": torch.full((2,), 5.0), "value": {"rate": [0.5, 3]}}, checkpoint_id=folder, planner=save)
    state = {"kept": torch.zeros(2), "new": torch.full((3,), 7.0), "value": {"rate": None}}
    dcp.load(state, checkpoint_id=folder, planner=load)
    return state


def again(ctx: Context, *, folder: Path) -> None:
    """Saves twice, the second time without leave to overwrite."""
    for overwrite in (True, False):
        writer = dcp.FileSystemWriter(folder, overwrite=overwrite)
        dcp.save({"x": torch.ones(1)}, storage_writer=writer)


def in_place(ctx: Context, *, states: list[State], folder: str) -> tuple[State, State]:
    """Saves states of matrices one in the other's place; returns the last one as it is loaded, and what else is there.

    Args:
        ctx: the rank's context.
        states: what the ranks save; each is cut along its own dimension, and each rank adds a value of its own.
        folder: or its address, for all of them.
    """
    mesh = ctx.mesh((ctx.world_size,))

    def cut(state: State, dim: int) -> State:
        return {
            name: distribute_tensor(value.to(ctx.device), mesh, [Shard(dim)], src_data_rank=None)
            for name, value in state.items()
        }

    for number, state in enumerate(states):
        dcp.save({**cut(state, number % 2), f"own {number} {ctx.rank}": [number]}, checkpoint_id=folder)
    loaded = cut({name: torch.zeros_like(value) for name, value in states[-1].items()}, len(states) % 2)
    dcp.load(loaded, checkpoint_id=folder)
    found = {name: value.full_tensor().cpu() for name, value in loaded.items()}
    return found, _load_state_dict_from_keys(checkpoint_id=folder)


class ChangingPlanner(DefaultSavePlanner):
    """Keeps its plans apart from those of other planners: torch caches them by the class's name."""

    def __init__(self) -> None:
        super().__init__(enable_plan_caching=True)


def _changing(ctx: Context, save: int) -> State:
    """What a rank has at a save: another state at the third one, and at each from the fifth to the eighth.

    First a tensor gets another size and the last rank has one more; then this rank alone has more of its own; a tensor
    is cut along another dimension; a value and a tensor change places; and ranks exchange their halves of a tensor.
    """
    last = ctx.rank == ctx.world_size - 1
    mesh = ctx.mesh((ctx.world_size,))
    turned = mesh if save < 7 else DeviceMesh(ctx.device.type, torch.arange(ctx.world_size).flip(0))
    even = integers((2 * ctx.world_size,), torch.float32, seed=128 + save).to(ctx.device)
    whole = integers((5, 2 + (save >= 2)), torch.float32, seed=save)
    replica = integers((3,), torch.float32, seed=64 + save).to(ctx.device)
    own = (2 + ctx.rank + (last and save >= 4),)
    state: State = {
        "shared": distribute_tensor(whole.to(ctx.device), mesh, [Shard(int(save >= 5))], src_data_rank=None),
        "halves": distribute_tensor(even, turned, [Shard(0)], src_data_rank=None),
        "replica": replica if save < 6 else 9 * save,
        "number": 8 * save if save < 6 else replica,
        f"own {ctx.rank}": rank_input(ctx.rank, shape=own, dtype=torch.float32, seed=save).to(ctx.device),
    }
    if save >= 2 and last:
        state["new"] = torch.full((2,), 3.0 + save, device=ctx.device)
    return state


def _local(state: State) -> State:
    local = {name: value.to_local() if isinstance(value, DTensor) else value for name, value in state.items()}
    return {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in local.items()}


def with_changing_plans(ctx: Context, *, folder: Path, saves: int) -> list[tuple[State, State]]:
    """What a rank saves one time after the other, with plans that are cached, and what it loads then of each."""
    found = []
    for save in range(saves):
        dcp.save(_changing(ctx, save), checkpoint_id=folder / str(save), planner=ChangingPlanner())
    for save in range(saves):
        saved = _changing(ctx, save)
        loaded = {
            name: torch.zeros_like(value) if isinstance(value, torch.Tensor) else -1 for name, value in saved.items()
        }
        dcp.load(loaded, checkpoint_id=folder / str(save))
        found.append((_local(saved), _local(loaded)))
    return found


def by_itself(ctx: Context, *, folder: Path, together: bool) -> tuple[State, State]:
    """What a rank saves without the others, and what it loads.

    Args:
        ctx: the rank's context.
        folder: for the checkpoint of each.
        together: whether all ranks write into one folder, each with its own metadata.
    """
    own = rank_input(ctx.rank, shape=(3, 2 + ctx.rank), dtype=torch.float32, seed=1)
    saved: State = {"tensor": own, "nested": {"number": 5 + ctx.rank}, f"of {ctx.rank}": own[1]}
    loaded: State = {
        "tensor": torch.zeros_like(own),
        "nested": {"number": -1},
        f"of {ctx.rank}": torch.zeros_like(own[1]),
    }
    if together:
        dcp.save(saved, checkpoint_id=folder, use_collectives=False)
        ctx.barrier()
        dcp.load(loaded, checkpoint_id=folder)
    else:
        _alone(ctx, folder, saved)
        _load_alone(ctx, folder, loaded)
    return saved, loaded


def into_meta(ctx: Context, *, folder: Path) -> State:
    """What a rank loads into tensors without storage, of which some are shards and some are whole.

    Args:
        ctx: the rank's context.
        folder: for the checkpoint.
    """
    mesh = ctx.mesh((ctx.world_size,))
    whole: State = {
        name: integers(shape, dtype, seed=number).to(ctx.device) for number, (name, shape, dtype) in enumerate(OF_META)
    }
    cut: State = {
        name: distribute_tensor(value, mesh, [Shard(value.dim() - 1)], src_data_rank=None)
        for name, value in whole.items()
    }
    dcp.save({"cut": whole, "whole": cut, "parameter": whole["rows"]}, checkpoint_id=folder)
    state: State = {
        "cut": {
            name: DTensor.from_local(
                shard(value.to("meta"), ctx.world_size, 0)[ctx.rank],
                mesh,
                [Shard(0)],
                run_check=False,
                shape=value.shape,
                stride=value.stride(),
            )
            for name, value in whole.items()
        },
        "whole": {name: value.to("meta") for name, value in whole.items()},
        "parameter": nn.Parameter(whole["rows"].to("meta")),
    }
    dcp.load(state, checkpoint_id=folder)
    assert all(isinstance(value, DTensor) for value in state["cut"].values())
    return {
        **{f"cut {name}": value.full_tensor().cpu() for name, value in state["cut"].items()},
        **{f"whole {name}": value.cpu() for name, value in state["whole"].items()},
        "parameter": state["parameter"].detach().cpu(),
    }
