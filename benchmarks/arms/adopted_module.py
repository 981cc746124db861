"""The class of the adopted arm, which copies this file to an empty folder and has pytest run it there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

import pytest_gpuperf
from pytest_gpuperf import Ranks

SIZE, TESTS = (int(os.environ[f"ARM_{name}"]) for name in ("RANKS", "TESTS"))


def with_own_group(rank: int, file: str) -> None:
    """The test of both, with a group that meets in a file."""
    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.FileStore(file, SIZE), rank=rank, world_size=SIZE)
    x = torch.full((4,), float(rank + 1), device=device)
    dist.all_reduce(x)
    assert x.tolist() == [SIZE * (SIZE + 1) / 2] * 4
    dist.destroy_process_group()


@pytest_gpuperf.on_ranks
class Sums(MultiProcessTestCase):
    """Tests of a harness that spawns the ranks for each, had nobody adopted it."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return SIZE

    def setUp(self) -> None:
        """As its own tests do it."""
        super().setUp()
        self._spawn_processes()

    def all_reduce(self) -> None:
        """Runs on every rank."""
        with_own_group(self.rank, self.file_name)


for number in range(1 + 5 * TESTS):
    setattr(Sums, f"test_all_reduce_{number}", Sums.all_reduce)


@pytest.mark.ranks(SIZE, launcher_env=True)  # so that the program may open a group
@pytest.mark.parametrize("repeat", range(1 + 5 * TESTS))
def test_native(ranks: Ranks, tmp_path: Path, repeat: int) -> None:
    """Runs the program without a class."""
    ranks.run(lambda ctx: with_own_group(ctx.rank, str(tmp_path / "met")))
