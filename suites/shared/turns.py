"""Whether ranks turn to different peers at each moment: if all read from one at once, they wait for its links."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_gpuperf import Context


@dataclass(slots=True)
class _Noted:
    """Memory of zeros that notes whose buffers a rank asks for."""

    asked: list[int] = field(default_factory=list)

    def buffer(self, rank: int, shape: tuple[int, ...], dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
        """Zeros of that shape."""
        self.asked.append(rank)
        return torch.zeros(shape, dtype=dtype)

    def barrier(self) -> None:
        """Nobody is there to wait for."""


def assert_in_turn(prepare: Callable[..., Any], *, ranks: int) -> None:
    """No two of so many ranks ask for the same rank's buffer at the same time.

    Args:
        prepare: prepares a program for a context with the memory that ``allocate`` gives.
        ranks: how many there are thought to be; none of them runs.

    Raises:
        AssertionError: two of them do.
    """
    asked = []
    for rank in range(ranks):
        memory = _Noted()
        context = Context(rank=rank, world_size=ranks, backend="gloo", device=torch.device("cpu"), seed=1)
        prepare(context, allocate=lambda ctx, nbytes, memory=memory: memory)
        asked.append(memory.asked)
    for number, peers in enumerate(zip(*asked, strict=True)):
        assert len(set(peers)) == ranks, f"buffer {number} that each rank asks for is of ranks {peers}: take turns"
