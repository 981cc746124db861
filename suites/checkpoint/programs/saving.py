"""torch.distributed.checkpoint's ways to save and load: planners, writers' threads and files, groups of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner

from pytest_gpuperf import Context
from suites.checkpoint.programs.training import Setup, State, Training
from suites.shared.training import Packed

Save = Callable[[Context, Path, State], object]


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


def _by_lowest_rank(ctx: Context, folder: Path, state: State) -> object:
    """The lowest rank that has a tensor writes it."""
    return dcp.save(state, checkpoint_id=folder, planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True))


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
    "the lowest rank": SavingWay(_by_lowest_rank, replicas=True),
    "a group": SavingWay(_in_group, _load_in_group),
    "alone": SavingWay(_alone, _load_alone, replicas=True),
    "a cached plan": SavingWay(_cached),
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
    """Loads two tensors of which the checkpoint has one, under names of one level."""
    save, load = (
        DefaultSavePlanner(flatten_state_dict=False),
        DefaultLoadPlanner(flatten_state_dict=False, allow_partial_load=allow),
    )
    dcp.save({"kept": torch.full((2,), 5.0)}, checkpoint_id=folder, planner=save)
    state = {"kept": torch.zeros(2), "new": torch.full((3,), 7.0)}
    dcp.load(state, checkpoint_id=folder, planner=load)
    return state


def again(ctx: Context, *, folder: Path) -> None:
    """Saves twice, the second time without leave to overwrite."""
    for overwrite in (True, False):
        writer = dcp.FileSystemWriter(folder, overwrite=overwrite)
        dcp.save({"x": torch.ones(1)}, storage_writer=writer)
