"""Checkpoints of steps, each a folder that is there whole or not at all."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_PREFIX, _PARTIAL = "step-", ".partial"
_KEPT = 2  # the last one, and the one before


@dataclass(frozen=True, slots=True)
class StepFolders:
    """The checkpoints in a folder.

    Ranks write their files to a folder with the suffix ``.partial``. When all have done so, one rank commits: a rename,
    which is atomic (POSIX, rename()), gives the folder its name.
    """

    folder: Path

    def latest(self) -> int:
        """Returns the step that follows the last whole checkpoint; 0 if there is none."""
        return max(self.steps(), default=0)

    def steps(self) -> list[int]:
        """The steps of all whole checkpoints, ascending."""
        found = (path.name.removeprefix(_PREFIX) for path in self.folder.glob(f"{_PREFIX}*"))
        return sorted(int(step) for step in found if step.isdigit())

    def write(self, step: int, name: str, state: Any, halfway: Callable[[], None] = lambda: None) -> None:
        """Writes a file of a checkpoint, and waits until the disk has it.

        Args:
            step: that follows the checkpoint.
            name: of the file.
            state: what torch.save writes.
            halfway: is called when one half of the file is written.
        """
        buffer = io.BytesIO()
        torch.save(state, buffer)
        data = buffer.getbuffer()
        partial = self._partial(step)
        partial.mkdir(parents=True, exist_ok=True)
        with (partial / name).open("wb") as file:
            file.write(data[: len(data) // 2])
            file.flush()
            halfway()
            file.write(data[len(data) // 2 :])
            file.flush()
            os.fsync(file.fileno())

    def commit(self, step: int) -> None:
        """Makes the checkpoint of a step valid, and removes those before the last two; one rank calls it."""
        _sync(self._partial(step))  # the names of its files
        self._partial(step).rename(self._whole(step))
        _sync(self.folder)
        for old in self.steps()[:-_KEPT]:
            shutil.rmtree(self._whole(old))

    def read(self, step: int, name: str) -> Any:
        """Returns what was written, on the CPU."""
        return torch.load(self._whole(step) / name, map_location="cpu", weights_only=True)

    def _whole(self, step: int) -> Path:
        return self.folder / f"{_PREFIX}{step}"

    def _partial(self, step: int) -> Path:
        return self.folder / f"{_PREFIX}{step}{_PARTIAL}"


def _sync(folder: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
