"""Saves that fail: processes that are killed, disks that are full; and what is left afterwards."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard

from pytest_gpuperf import Context
from suites.checkpoint.programs.directory import (
    MismatchError,
    NewerFormatError,
    NoCheckpointError,
    SaveFailedError,
    Store,
)
from suites.checkpoint.programs.training import State
from suites.shared.bits import random_bits

TENSORS = 3
FILE_EVENTS = frozenset(["open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir", "shutil.rmtree"])
"""The events of Python's audit hooks that ask the file system for something."""


def state_of(ctx: Context, step: int, numel: int) -> State:
    """The state of a step: bits that are a function of step, tensor and place, whatever the number of ranks.

    Args:
        ctx: the rank's context.
        step: 0 for none that is ever saved.
        numel: elements of each tensor; one is replicated, the others are sharded.
    """
    mesh = ctx.mesh((ctx.world_size,))
    share = numel // ctx.world_size

    def bits(index: int, start: int, stop: int) -> torch.Tensor:
        return random_bits(start, stop, stream=step * (TENSORS + 1) + index, device=ctx.device)

    sharded = {
        f"sharded{index}": DTensor.from_local(
            bits(index, ctx.rank * share, (ctx.rank + 1) * share), mesh, [Shard(0)], run_check=False
        )
        for index in range(TENSORS)
    }
    return {"model": {**sharded, "replicated": bits(TENSORS, 0, numel)}}


def assert_state_of(ctx: Context, state: State, step: int, numel: int) -> None:
    """Checks that a state is that of a step, to the bit."""
    for name, expected in state_of(ctx, step, numel)["model"].items():
        have, want = (
            tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in (state["model"][name], expected)
        )
        wrong = int((have != want).sum())
        assert not wrong, f"rank {ctx.rank}, {name}: {wrong} of {want.numel()} elements are not those of step {step}"


def save(ctx: Context, *, store: Store, step: int, numel: int) -> float:
    """Saves a step, and returns the seconds that it took."""
    state = state_of(ctx, step, numel)
    dist.barrier()
    began = time.perf_counter()
    store.save(step, state)
    return time.perf_counter() - began


def save_until_killed(
    ctx: Context, *, store: Store, step: int, numel: int, after: float, victims: Collection[int], mark: Path
) -> None:
    """Saves a step; so many seconds after it began, the kernel kills the victims.

    Args:
        ctx: the rank's context.
        store: what saves.
        step: which.
        numel: of each tensor.
        after: seconds.
        victims: ranks.
        mark: a file that is made once a rank's save has returned.
    """
    state = state_of(ctx, step, numel)
    timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL))
    timer.daemon = True
    dist.barrier()
    if ctx.rank in victims:
        timer.start()
    store.save(step, state)
    mark.touch()
    timer.cancel()


def save_until_operation(ctx: Context, *, store: Store, root: Path, step: int, numel: int, number: int) -> bool:
    """Saves a step; rank 0 is killed right before its n-th operation on files below a folder.

    Its audit hook stays in the process.

    Returns:
        Whether the save ended before that.
    """
    left, armed = number, ctx.rank == 0

    def kill(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if armed and event in FILE_EVENTS and str(arguments[0]).startswith(str(root)):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    state = state_of(ctx, step, numel)
    sys.addaudithook(kill)
    store.save(step, state)
    armed = False
    return True


@contextlib.contextmanager
def largest_file(nbytes: int) -> Iterator[None]:
    """Within its block the kernel refuses this process any file of more bytes, as a full disk does.

    It takes a part of a write and then fails with EFBIG instead of ENOSPC: ``setrlimit(2)``, RLIMIT_FSIZE.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def save_on_full_disk(ctx: Context, *, store: Store, step: int, numel: int, room: int, victim: int) -> str:
    """Saves a step if the disk of one rank has room for so many bytes of a file; returns why it failed, if it did."""
    state = state_of(ctx, step, numel)
    with largest_file(room) if ctx.rank == victim else contextlib.nullcontext():
        try:
            store.save(step, state)
        except Exception as raised:
            return f"{type(raised).__name__}: {raised}"
    return ""


def complaint(ctx: Context, program: Callable[..., object], **given: Any) -> str:
    """What a program raises on this rank, as text; nothing if it ends well.

    Ranks that raise lose their communicators, on GPUs 0.7 s to make anew; these return.
    """
    try:
        program(ctx, **given)
    except (MismatchError, NewerFormatError, NoCheckpointError, SaveFailedError) as raised:
        return f"{type(raised).__name__}: {raised}"
    return ""


def recover(ctx: Context, *, store: Store, numel: int) -> tuple[int, tuple[str, ...]]:
    """Loads the latest whole checkpoint, checks every bit, and returns its step and what was passed over."""
    state = state_of(ctx, 0, numel)
    loaded = store.load(state)
    assert_state_of(ctx, state, loaded.step, numel)
    return loaded.step, loaded.passed_over


def synced_and_renamed(ctx: Context, *, store: Store) -> list[tuple[str, str]]:
    """Saves step 10, and returns the rank's calls of fsync and rename, in their order, each with its path."""
    calls: list[tuple[str, str]] = []
    sync, rename = os.fsync, os.rename

    def noted_sync(handle: int) -> None:
        sync(handle)
        calls.append(("sync", os.readlink(f"/proc/self/fd/{handle}")))

    def noted_rename(source: Any, target: Any, **kwargs: Any) -> None:
        calls.append(("rename", os.fspath(source)))
        rename(source, target, **kwargs)

    with mock.patch("os.fsync", noted_sync), mock.patch("os.rename", noted_rename):
        store.save(10, state_of(ctx, 10, 12))
    return [*calls, ("end", "")]
