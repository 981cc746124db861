"""Copies that an asynchronous save makes of tensors and of objects, by each of torch's ways and by one's own.

All that was saved changes in place after the call, before anything may be written.
"""

from __future__ import annotations

import copy
import gc
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from multiprocessing import resource_sharer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import DefaultSavePlanner, _async_process_executor
from torch.distributed.checkpoint.staging import BlockingAsyncStager, DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from pytest_gpuperf import Context
from suites.checkpoint.programs.asynchronous import PATIENCE
from suites.shared.inputs import integers, rank_input

State = dict[str, Any]


class WaitingPlanner(DefaultSavePlanner):
    """Gives what is to be written once it may."""

    def __init__(self, may: threading.Event) -> None:
        super().__init__()
        self._may = may

    def resolve_data(self, write_item: Any) -> Any:
        """Waits, and then gives it.

        Raises:
            TimeoutError: whoever saved did not go on.
        """
        if not self._may.wait(PATIENCE):
            raise TimeoutError(f"the save was not over {PATIENCE:g} s after what was saved could change")
        return super().resolve_data(write_item)


class Cloning:
    """Somebody's own stager."""

    _synchronize_after_execute = False

    def stage(self, state_dict: State) -> State:
        """Copies on the CPU."""
        return {name: _copied(value) for name, value in state_dict.items()}

    @property
    def should_synchronize_after_execute(self) -> bool:
        """Whether the copies are made later; they are made at once."""
        return False

    def synchronize_staging(self) -> None:
        """Nothing is left to wait for."""

    def close(self) -> None:
        """Nothing is held."""


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copied(part) for name, part in value.items()}
    return value.cpu().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)


Begin = Callable[[State, Path, WaitingPlanner, dist.ProcessGroup], object]
"""Begins to save a state into a folder, by a planner, with collectives of a group."""


def _default(state: State, folder: Path, planner: WaitingPlanner, group: dist.ProcessGroup) -> object:
    return dcp.async_save(state, process_group=group, checkpoint_id=folder, planner=planner)


def _by_writer(state: State, folder: Path, planner: WaitingPlanner, group: dist.ProcessGroup) -> object:
    return dcp.async_save(state, process_group=group, storage_writer=dcp.FileSystemWriter(folder), planner=planner)


def _in_a_thread(state: State, folder: Path, planner: WaitingPlanner, group: dist.ProcessGroup) -> object:
    """The copies are in shared memory, and made by a thread."""
    options = StagingOptions(
        use_pinned_memory=False, use_shared_memory=True, use_async_staging=True, use_non_blocking_copy=False
    )
    return dcp.async_save(
        state, process_group=group, checkpoint_id=folder, planner=planner, async_stager=DefaultStager(options)
    )


def _by_own(state: State, folder: Path, planner: WaitingPlanner, group: dist.ProcessGroup) -> object:
    return dcp.async_save(state, process_group=group, checkpoint_id=folder, planner=planner, async_stager=Cloning())


def _blocking(state: State, folder: Path, planner: WaitingPlanner, group: dist.ProcessGroup) -> object:
    """Torch's stager that makes new copies each time, and needs no storage that tensors share."""
    return dcp.async_save(
        state, process_group=group, checkpoint_id=folder, planner=planner, async_stager=BlockingAsyncStager()
    )


class _Keeping(BlockingAsyncStager):
    """Copies into what it has kept since the first save."""

    def __init__(self) -> None:
        super().__init__(cache_staged_state_dict=True)

    def stage(self, state_dict: State) -> State:
        """Copies all but objects, which torch refuses; and has memory that is not pinned, which would need a GPU."""
        rest = {name: value for name, value in state_dict.items() if name != "objects"}
        if self.state_dict_cache is None:
            self.state_dict_cache = _copied(rest)
        return {**super().stage(rest), "objects": copy.deepcopy(state_dict["objects"])}


class _Kept:
    """All saves have one stager."""

    def __init__(self) -> None:
        self._stager = _Keeping()

    def __call__(self, state: State, folder: Path, planner: WaitingPlanner, group: dist.ProcessGroup) -> object:
        """Begins to save."""
        return dcp.async_save(
            state, process_group=group, checkpoint_id=folder, planner=planner, async_stager=self._stager
        )


def _alone(state: State, folder: Path, planner: WaitingPlanner, group: dist.ProcessGroup) -> object:
    """Each rank saves by itself."""
    return dcp.async_save(
        state, process_group=group, checkpoint_id=folder / str(dist.get_rank()), planner=planner, no_dist=True
    )


def _by_process(state: State, folder: Path, planner: WaitingPlanner, group: dist.ProcessGroup) -> object:
    """Another process writes, which no event of this one reaches."""
    return dcp.async_save(
        state, process_group=group, checkpoint_id=folder, async_checkpointer_type=AsyncCheckpointerType.PROCESS
    )


def _end_process() -> None:
    """Ends the process that writes, and the thread that gave it tensors; torch keeps both for the next save."""
    _async_process_executor._CHECKPOINT_PROCESS = None
    gc.collect()
    resource_sharer.stop()


WAYS: Mapping[str, Callable[[], Begin]] = {
    "default": lambda: _default,
    "a writer": lambda: _by_writer,
    "a thread": lambda: _in_a_thread,
    "your own": lambda: _by_own,
    "blocking": lambda: _blocking,
    "kept": _Kept,
    "alone": lambda: _alone,
    "a process": lambda: _by_process,
}
"""Each makes what begins all saves of a test."""


def state_of(ctx: Context, seed: int, *, split: bool) -> State:
    """Tensors that are views of one storage, a scalar, objects that hold objects; and a shard, if ranks save together.

    Args:
        ctx: the rank's context.
        seed: of all numbers.
        split: whether a tensor is cut over the ranks.
    """
    base = integers((6, 4), torch.float32, seed=seed).to(ctx.device)
    twice = [seed, seed + 1]
    objects = SimpleNamespace(
        order=OrderedDict(b=[1, seed], a=(3, [seed])),
        counts=defaultdict(list, {"x": [seed], 2: [twice]}),
        recent=deque([seed, [seed, 1]], maxlen=3),
        delay=timedelta(seconds=seed),
        twice=twice,
        again=twice,
    )
    state: State = {
        "tensors": {"rows": base[1:3], "turned": base[3:].t(), "base": base, "scalar": torch.tensor(seed + 0.5)},
        "objects": objects,
        "number": seed,
        f"own {ctx.rank}": rank_input(ctx.rank, shape=(2, 3), dtype=torch.float64, seed=seed).to(ctx.device),
    }
    if split:
        for name, rows in (("shard", 5), ("thin", 1)):  # of one row only one rank has something
            whole = integers((rows, 3), torch.bfloat16, seed=seed + rows).to(ctx.device)
            state[name] = distribute_tensor(whole, ctx.mesh((ctx.world_size,)), [Shard(0)], src_data_rank=None)
    return state


def _spoil(state: State) -> None:
    """Changes all in place."""
    objects = state["objects"]
    objects.order["a"][1].append(-1)
    objects.order["b"].append(-1)
    objects.counts["x"].append(-1)
    objects.recent[1].append(-1)
    objects.recent.append(-1)
    objects.twice.append(-1)
    state["number"] = -1
    tensors = [state["tensors"]["base"], state["tensors"]["scalar"]]
    for value in [*tensors, *(value for value in state.values() if isinstance(value, torch.Tensor))]:
        value.fill_(-100)


def staged(ctx: Context, *, way: str, folder: Path, saves: int = 1) -> list[tuple[State, State]]:
    """What a rank had when it called for each save, and what it loads when that is over.

    Args:
        ctx: the rank's context.
        way: a key of ``WAYS``.
        folder: for the checkpoints.
        saves: how many, one after the other.
    """
    group = dist.new_group(backend="gloo")
    begin, split = WAYS[way](), way != "alone"
    found = [_staged(ctx, begin, folder / str(save), group, seed=5 + save, split=split) for save in range(saves)]
    if way == "a process":
        _end_process()
    return found


def _staged(
    ctx: Context, begin: Begin, folder: Path, group: dist.ProcessGroup, *, seed: int, split: bool
) -> tuple[State, State]:
    state = state_of(ctx, seed, split=split)
    may = threading.Event()
    saving = begin(state, folder, WaitingPlanner(may), group)
    if isinstance(saving, AsyncSaveResponse):
        saving.staging_completion.result(PATIENCE)
        saving = saving.upload_completion
    assert isinstance(saving, Future)
    _spoil(state)
    may.set()
    saving.result(PATIENCE)
    return _plain(state_of(ctx, seed, split=split)), _loaded(ctx, folder, split=split)


def _loaded(ctx: Context, folder: Path, *, split: bool) -> State:
    loaded = state_of(ctx, 9, split=split)
    loaded["tensors"] = {name: value.clone() for name, value in loaded["tensors"].items()}
    dcp.load(loaded, checkpoint_id=folder if split else folder / str(ctx.rank), no_dist=not split)
    return _plain(loaded)


def overlapped(ctx: Context, *, folder: Path) -> list[tuple[State, State]]:
    """What a rank had when it called for each of two saves, the second before the first was over, and what it loads.

    All tensors are the same ones, with other values.
    """
    group = dist.new_group(backend="gloo")
    state, seeds = state_of(ctx, 5, split=False), (5, 6)
    begun: list[tuple[threading.Event, Future[Any]]] = []
    for seed in seeds:
        now = state_of(ctx, seed, split=False)
        for name in ("base", "scalar"):  # all others are views
            state["tensors"][name].copy_(now["tensors"][name])
        state[f"own {ctx.rank}"].copy_(now[f"own {ctx.rank}"])
        state |= {name: now[name] for name in ("objects", "number")}
        may = threading.Event()
        saving = _alone(state, folder / str(seed), WaitingPlanner(may), group)
        assert isinstance(saving, Future)
        begun.append((may, saving))
    _spoil(state)
    for may, saving in begun:
        may.set()
        saving.result(PATIENCE)
    return [(_plain(state_of(ctx, seed, split=False)), _loaded(ctx, folder / str(seed), split=False)) for seed in seeds]


def _plain(state: State) -> State:
    flat = {**state, **state["tensors"]}
    del flat["tensors"]
    local = {name: value.to_local() if isinstance(value, DTensor) else value for name, value in flat.items()}
    return {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in local.items()}
