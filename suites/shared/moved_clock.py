"""A clock that only copies move: what a program reports of its time can then be told exactly."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from unittest import mock

import torch


@contextlib.contextmanager
def copies_lasting(seconds: Iterable[float]) -> Iterator[None]:
    """Within it each ``copy_`` takes the next of these seconds of ``time.perf_counter``, and nothing else takes any."""
    now, copy, lasting = 0.0, torch.Tensor.copy_, iter(seconds)

    def clock() -> float:
        return now

    def timed_copy(destination: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        nonlocal now
        now += next(lasting)
        return copy(destination, source)

    with mock.patch("time.perf_counter", clock), mock.patch.object(torch.Tensor, "copy_", timed_copy):
        yield
