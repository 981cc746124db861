"""Symmetric memory that makes a missing barrier visible: one of two ranks is as slow as can be.

It goes on behind a barrier only when the other has come as far as it can by itself. What a missing barrier would allow
to happen too early has then happened. Steps follow one another: a barrier may protect the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pytest_gpuperf import Context
from suites.shared.peer_memory import SymmetricMemory, allocate

NBYTES = 1024
"""Bytes of the memory, whatever the program asks for."""


@dataclass(slots=True)
class OneSlowRank:
    """Memory in which rank 0 lets rank 1 go ahead wherever it can."""

    ctx: Context
    memory: SymmetricMemory
    passed: int = 0

    def buffer(self, rank: int, shape: tuple[int, ...], dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
        """A view of that rank's bytes of the memory."""
        return self.memory.buffer(rank, shape, dtype, offset)

    def barrier(self) -> None:
        """Rank 0 leaves it once rank 1 is at the next one, or has come to the end."""
        self.arrived()
        self.memory.barrier()
        self.passed += 1
        self.wait()

    def arrived(self) -> None:
        """Rank 1 can get no further before rank 0 does."""
        if self.ctx.rank == 1:
            self.ctx.store.set(f"arrived {self.passed}", "")

    def wait(self) -> None:
        """Rank 0 waits for that."""
        if self.ctx.rank == 0:
            self.ctx.store.wait([f"arrived {self.passed}"])


def with_one_slow_rank(ctx: Context, program: Callable[..., Callable[[], Any]], steps: int) -> list[Any]:
    """What so many steps of the program return, which gets its memory by ``allocate``."""
    memory = OneSlowRank(ctx, allocate(ctx, NBYTES))
    memory.wait()
    step = program(ctx, allocate=lambda ctx, nbytes: memory)
    results = [step() for _ in range(steps)]
    memory.arrived()
    return results
