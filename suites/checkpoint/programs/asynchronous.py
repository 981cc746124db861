"""Asynchronous saves: the state is copied to the host, training goes on, and a thread writes the copy.

The thread calls collectives. It has a gloo process group of its own, so that they never mix with those of training.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from pytest_gpuperf import Context
from suites.checkpoint.programs.training import Setup, State, Training
from suites.shared.training import Packed

PATIENCE = 30.0
"""Seconds that a write waits for training to go on; a save that blocks training fails after that."""

Begin = Callable[[State, dcp.FileSystemWriter, dist.ProcessGroup], "Future[Any]"]
"""Begins to save a state through a writer, with collectives of a group; the future is done once all is written."""


class WaitingWriter(dcp.FileSystemWriter):
    """Writes once it may: training has to go on before that."""

    def __init__(self, folder: Path, may: threading.Event) -> None:
        super().__init__(folder)
        self._may = may

    def write_data(self, *arguments: Any) -> Any:
        """Waits, and then writes.

        Raises:
            TimeoutError: training did not go on.
        """
        if not self._may.wait(PATIENCE):
            raise TimeoutError(f"training did not go on within {PATIENCE:g} s of a save that was to be asynchronous")
        return super().write_data(*arguments)


def asynchronous_save(state: State, writer: dcp.FileSystemWriter, group: dist.ProcessGroup) -> Future[Any]:
    """Torch's own."""
    begun = dcp.async_save(state, storage_writer=writer, process_group=group)
    assert isinstance(begun, Future)
    return begun


def saved_by_one_stager(ctx: Context, *, job: Setup, folders: Sequence[Path]) -> list[Packed]:
    """What training had at each save; it takes a step before each, and all go through the same host copy.

    Args:
        ctx: the rank's context.
        job: what is trained.
        folders: for the checkpoints, one after the other.
    """
    group = dist.new_group(backend="gloo")
    training = Training(ctx, job, initial=job.seed)
    plain = StagingOptions(
        use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
    )
    stager = DefaultStager(plain)
    saved = []
    for folder in folders:
        training.train(1)
        saved.append(training.contents())
        saving = dcp.async_save(
            training.state(), storage_writer=dcp.FileSystemWriter(folder), process_group=group, async_stager=stager
        )
        assert isinstance(saving, Future)
        saving.result()
    stager.close()
    return saved


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """What a rank saw of a training that went on during a save."""

    at_save: Packed
    """What training had when the save was called."""
    unfinished: bool
    """Whether the save was still going on when training had taken its steps."""
    losses: list[float]
    """The losses of these steps."""
    end: Packed
    """Parameters after them."""


def train_meanwhile(
    ctx: Context, *, job: Setup, folder: Path, before: int, after: int, begin: Begin = asynchronous_save
) -> Meanwhile:
    """Trains, begins to save, and takes steps before anything may be written.

    Args:
        ctx: the rank's context.
        job: what is trained.
        folder: for the checkpoint.
        before: steps before the save.
        after: steps during it.
        begin: begins the save.
    """
    group = dist.new_group(backend="gloo")
    training = Training(ctx, job, initial=job.seed)
    training.train(before)
    at_save = training.contents()
    may = threading.Event()
    saving = begin(training.state(), WaitingWriter(folder, may), group)
    losses = training.train(after)
    unfinished = not saving.done()
    may.set()
    saving.result()
    return Meanwhile(at_save, unfinished, losses, training.parameters())
