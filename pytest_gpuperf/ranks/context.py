"""What a program is told about the rank it runs on. Lives in rank processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True)
class Context:
    """A rank's place in its world, handed to every program as the first argument."""

    rank: int
    """This rank, 0 to world_size - 1."""
    world_size: int
    """Number of ranks in the process group."""
    backend: str
    """``nccl`` or ``gloo``."""
    device: torch.device
    """``cuda:<local_rank>`` with nccl, ``cpu`` with gloo."""
    seed: int
    """Differs by rank and by test, and is the same in every run of the test."""

    @property
    def local_rank(self) -> int:
        """The rank within its host; all ranks of a run are on one host."""
        return self.rank

    @property
    def group(self) -> ProcessGroup:
        """The default process group, over all ranks of the world."""
        import torch.distributed as dist

        group = dist.group.WORLD
        if group is None:
            raise RuntimeError(f"rank {self.rank} has no process group: the program destroyed it")
        return group

    def generator(self) -> torch.Generator:
        """A new generator on the rank's device, seeded with ``seed``: equal draws at each call."""
        import torch

        generator = torch.Generator(device=self.device)
        generator.manual_seed(self.seed)
        return generator
