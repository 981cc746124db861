"""What is timed of a save and of a load: bytes that are on the disk, and bytes that come from it."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from pytest_gpuperf import Context, Ranks, Resettable
from suites.checkpoint.programs import speed

pytestmark = pytest.mark.ranks(1)

NBYTES = 4096


@pytest.mark.parametrize("program", [speed.plain_write, speed.synchronous])
def test_a_save_is_on_the_disk_when_its_step_returns(
    ranks: Ranks, tmp_path: Path, program: Callable[..., Resettable]
) -> None:
    def synced(ctx: Context) -> set[tuple[str, int]]:
        sync, found = os.fsync, set()

        def note(handle: int) -> None:
            sync(handle)
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            found.add((path.name, path.stat().st_size))

        assert sum(tensor.nbytes for tensor in speed.own_tensors(ctx, NBYTES)) == NBYTES
        step = program(ctx, folder=tmp_path, nbytes=NBYTES, uploads=speed.Uploads())
        with mock.patch("os.fsync", note):
            step()
        return found

    (found,) = ranks.run(synced)
    files = {(path.name, path.stat().st_size) for path in tmp_path.glob("*/[_0]*")}
    assert files
    assert files <= found, f"{files - found} may still be in memory"
    assert sum(size for _, size in files) >= NBYTES


class Uploading(Future[Any]):
    """An upload that is over as soon as somebody waits for it; notes what there is of a folder then."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.waits: list[bool] = []

    def result(self, timeout: float | None = None) -> None:
        """Ends it."""
        self.waits.append(self.folder.exists())


def test_an_asynchronous_save_is_waited_for_outside_of_its_step(ranks: Ranks, tmp_path: Path) -> None:
    """All that are under way, before their folder is emptied for the next sample."""

    def waited(ctx: Context) -> list[list[list[bool]]]:
        begun: list[Uploading] = []

        def begin(*arguments: Any, checkpoint_id: Path, **options: Any) -> Uploading:
            checkpoint_id.mkdir(exist_ok=True)
            begun.append(Uploading(checkpoint_id))
            return begun[-1]

        step = speed.asynchronous(ctx, folder=tmp_path, nbytes=NBYTES, uploads=speed.Uploads())
        found = []
        with mock.patch("torch.distributed.checkpoint.async_save", begin):
            for act in (step, step, step.reset, step.reset):
                act()
                found.append([list(upload.waits) for upload in begun])
        return found

    assert ranks.run(waited)[0] == [[[]], [[], []], [[True], [True]], [[True], [True]]]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("program", [speed.plain_read, speed.sharded_load])
def test_a_load_comes_from_the_disk(ranks: Ranks, tmp_path: Path, program: Callable[..., Resettable]) -> None:
    """The kernel is asked to drop each file, and tensors are empty before the step."""

    def loaded(ctx: Context) -> list[str]:
        dropped = []

        def note(handle: int, start: int, length: int, advice: int) -> None:
            assert (start, length, advice) == (0, 0, os.POSIX_FADV_DONTNEED)
            dropped.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)

        step = program(ctx, folder=tmp_path, nbytes=NBYTES)
        tensors = step()
        with mock.patch("os.posix_fadvise", note):
            step.reset()
        assert not any(tensor.any() for tensor in tensors)
        speed.assert_own(ctx, step(), "load")
        return sorted(dropped)

    assert ranks.run(loaded)[0] == sorted(path.name for path in tmp_path.glob("*/*"))
