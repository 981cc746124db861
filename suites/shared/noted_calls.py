"""What calls of collectives and of sends are made: in which groups, and to which peers in turn."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from pytest_gpuperf import Context


@contextmanager
def noted_groups(collective: str) -> Iterator[list[Any]]:
    """Within the block the group of each call of ``torch.distributed``'s collective, in order; runs on ranks."""
    called: list[Any] = []
    original = getattr(dist, collective)
    signature = inspect.signature(original)

    def note(*args: Any, **kwargs: Any) -> Any:
        group = signature.bind(*args, **kwargs).arguments.get("group")
        called.append(dist.group.WORLD if group is None else group)
        return original(*args, **kwargs)

    with mock.patch.object(dist, collective, note):
        yield called


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
