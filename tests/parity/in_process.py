"""Ranks that are no processes: programs without collectives run one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from pytest_gpuperf import Parity, Ranks


class _Runner:
    backend = "gloo"

    def run(
        self,
        world_size: int,
        entry: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        program: Callable[..., Any],
    ) -> list[Any]:
        """Calls the entry for each rank."""
        place = {"world_size": world_size, "device": torch.device("cpu"), "meshes": ()}
        return [entry(SimpleNamespace(rank=rank, **place), *args, **kwargs) for rank in range(world_size)]


def parity(world_size: int = 2, seed: int = 0) -> Parity:
    """The fixture's object over such ranks."""
    return Parity(Ranks(_Runner(), world_size), seed)
