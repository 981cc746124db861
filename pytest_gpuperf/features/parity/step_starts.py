"""Has each step of a watched loop begin from given parameters and optimizer states."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from pytest_gpuperf.features.parity.records import Key


@dataclass(frozen=True, repr=False)
class StepStarts:
    """What a rank's parameters and optimizer states become at the end of each step."""

    tensors: Mapping[Key, torch.Tensor]

    def put(self, key: Key, tensor: torch.Tensor) -> None:
        """Overwrites a tensor of the program, if a value of its shape is known."""
        wanted = self.tensors.get(key)
        value: Any = tensor
        held = value.to_local() if hasattr(value, "to_local") else tensor
        if wanted is not None and held.shape == wanted.shape:
            with torch.no_grad():
                held.copy_(wanted)


_active: ContextVar[StepStarts | None] = ContextVar("gpuperf_step_starts", default=None)


@contextlib.contextmanager
def beginning(starts: StepStarts | None) -> Iterator[None]:
    """Has loops that are watched within begin each step from these."""
    token = _active.set(starts)
    try:
        yield
    finally:
        _active.reset(token)


def find_starts() -> StepStarts | None:
    """Returns where the steps of this loop begin; None if each goes on from the one before."""
    return _active.get()
