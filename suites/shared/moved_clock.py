"""A clock that only some calls move: what a program reports of its time can then be compared exactly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import torch

from suites.shared.delay import Delay


@contextlib.contextmanager
def moved_by(owner: object, name: str, seconds: Callable[..., float], *, instead: bool = False) -> Iterator[None]:
    """Within it each call takes some seconds of ``time.perf_counter``, and nothing else takes any.

    Args:
        owner: a module, class or object.
        name: of its function whose calls take time.
        seconds: of a call with these arguments.
        instead: whether the call does nothing else.
    """
    now, original = 0.0, getattr(owner, name)

    def clock() -> float:
        return now

    def timed(*args: Any, **kwargs: Any) -> Any:
        nonlocal now
        now += seconds(*args, **kwargs)
        return None if instead else original(*args, **kwargs)

    with mock.patch("time.perf_counter", clock), mock.patch.object(owner, name, timed):
        yield


@contextlib.contextmanager
def copies_lasting(seconds: Iterable[float]) -> Iterator[None]:
    """Within it each ``copy_`` takes the next of these seconds of ``time.perf_counter``, and nothing else takes any."""
    lasting = iter(seconds)
    with moved_by(torch.Tensor, "copy_", lambda destination, source: next(lasting)):
        yield


@contextlib.contextmanager
def delays_lasting() -> Iterator[None]:
    """Within it each ``Delay`` takes its seconds of ``time.perf_counter`` at once, and nothing else takes any."""
    with moved_by(Delay, "__call__", lambda delay: delay.seconds, instead=True):
        yield


@contextlib.contextmanager
def products_lasting(seconds: float) -> Iterator[None]:
    """Within it each ``torch.mm`` takes so many seconds of ``time.perf_counter``, and nothing else takes any."""
    with moved_by(torch, "mm", lambda *_, **__: seconds):
        yield
