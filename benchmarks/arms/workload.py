"""What every arm shares: the test itself, the command line, and the report. Imports little, as ranks import it too."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class World:
    """The ranks that a test runs on."""

    size: int
    gpus: bool

    @property
    def backend(self) -> str:
        """As torch.distributed names it."""
        return "nccl" if self.gpus else "gloo"

    def device(self, rank: int) -> torch.device:
        """The rank's own; it becomes the process's current one."""
        if not self.gpus:
            return torch.device("cpu")
        torch.cuda.set_device(rank)
        return torch.device("cuda", rank)


@dataclass(frozen=True, slots=True)
class Arguments:
    """What an arm is asked for."""

    world: World
    tests: int
    """Steady tests of each kind; what starts an arm comes on top."""


def arguments() -> Arguments:
    """The arm's command line, which rank_cost.py writes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--tests", type=int, required=True)
    parsed = parser.parse_args()
    return Arguments(World(parsed.ranks, parsed.gpus > 0), parsed.tests)


def open_group(world: World, rank: int, file: str) -> None:
    """Opens the default process group; the ranks meet in the file, which is cheaper than a new store's port."""
    device = world.device(rank)
    dist.init_process_group(
        world.backend,
        store=dist.FileStore(file, world.size),
        rank=rank,
        world_size=world.size,
        device_id=device if world.gpus else None,
    )


def all_reduce_checked(world: World, rank: int) -> None:
    """The test's body."""
    x = torch.full((4,), float(rank + 1), device=world.device(rank))
    dist.all_reduce(x)
    assert x.tolist() == [world.size * (world.size + 1) / 2] * 4


def whole_test(world: World, rank: int, file: str) -> None:
    """The test with a process group of its own."""
    open_group(world, rank, file)
    all_reduce_checked(world, rank)
    dist.destroy_process_group()


def seconds_of(work: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def report(seconds: dict[str, list[float]], missing: Iterable[tuple[str, str]] = ()) -> None:
    """Prints, for rank_cost.py, the seconds of each row's tests, and why a row has none."""
    print(json.dumps({"seconds": seconds, "missing": dict(missing)}))
