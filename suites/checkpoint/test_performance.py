"""How long a save blocks training, and how near saves and loads come to the disk's own speed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_gpuperf import Comparison, Context, MiB, Perf
from suites.checkpoint.programs import speed

pytestmark = [pytest.mark.perf, pytest.mark.ranks(1, 2, 4, 8, largest=True, timeout=600)]  # disks may be slow

LEAST = 3.3
"""Training is blocked for at most 0.3 of the time."""
SMOKE = 4096
"""Bytes."""


def written(ctx: Context, output: speed.Saved, steps: int) -> None:
    """Reads what a step has put on the disk."""
    speed.assert_own(ctx, speed.saved_tensors(ctx, output), f"{output.folder.name} save")


def read(ctx: Context, output: list[torch.Tensor], steps: int) -> None:
    """Looks at what a step has loaded."""
    speed.assert_own(ctx, output, "load")


def show_rates(perf: Perf, raced: Comparison, nbytes: int, name: str) -> None:
    """Both arms' rates, of all ranks together: the hardware key does not know the disk, so nobody judges them."""
    total = nbytes * perf.world_size
    perf.show(**{name: raced.optimized.rate(total, "B/s"), "plain": raced.baseline.rate(total, "B/s")})


@pytest.mark.depends("host")
def test_asynchronous_save_hardly_blocks(perf: Perf, tmp_path: Path) -> None:
    raced = perf.compare(
        baseline=speed.synchronous,
        optimized=speed.asynchronous,
        at_least=LEAST,
        verify=written,
        folder=tmp_path,
        nbytes=perf.sized(8 * MiB, smoke=SMOKE),
        uploads=speed.Uploads(),
    )
    perf.check(speedup=raced.speedup)
    perf.show(blocked=raced.optimized.time, synchronous=raced.baseline.time)


@pytest.mark.depends("host")
def test_save(perf: Perf, tmp_path: Path) -> None:
    nbytes = perf.sized(16 * MiB, smoke=SMOKE)
    raced = perf.compare(
        baseline=speed.plain_write,
        optimized=speed.synchronous,
        verify=written,
        folder=tmp_path,
        nbytes=nbytes,
        uploads=speed.Uploads(),
    )
    perf.check(of_plain=raced.speedup)
    show_rates(perf, raced, nbytes, "save")


@pytest.mark.depends("host")
def test_load(perf: Perf, tmp_path: Path) -> None:
    nbytes = perf.sized(16 * MiB, smoke=SMOKE)
    raced = perf.compare(
        baseline=speed.plain_read, optimized=speed.sharded_load, verify=read, folder=tmp_path, nbytes=nbytes
    )
    perf.check(of_plain=raced.speedup)
    show_rates(perf, raced, nbytes, "load")
