"""Which ranks wait for a late one, by the order of what ranks do: durations on a busy host prove nothing.

A test names the method that holds up the late rank, for example ``Delay.__call__``. Notes go through the test's store.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from unittest import mock

import torch

from pytest_gpuperf import Context
from suites.shared.step import Step

PAUSE = 0.05
"""Seconds that the late rank stays away, so that ranks that do not wait for it end their steps before."""
PATIENCE = timedelta(seconds=30)
"""How long a late rank stays away at most if the others have to end their steps without it."""


def waited(ctx: Context, step: Step[object], number: int, *, holds_up: tuple[type, str], note: str) -> list[bool]:
    """Return for each of so many steps whether it ended on this rank only after the late rank had come.

    Args:
        ctx: the rank.
        step: in which one rank is held up.
        number: of steps.
        holds_up: the class and the name of the method that holds up the late rank.
        note: what no other steps of the test are called.
    """
    found = []
    for count in range(number):
        key = f"{note}, step {count}: the late rank has come"

        def comes(key: str = key) -> None:
            time.sleep(PAUSE)
            ctx.store.set(key, "yes")

        ctx.barrier()
        with _holding_up(holds_up, comes):
            _done(ctx, step)
        found.append(ctx.store.check([key]))
    return found


def end_without(ctx: Context, step: Step[object], number: int, *, holds_up: tuple[type, str], note: str) -> None:
    """Take so many steps in which the late rank does not come before all others have ended theirs.

    Args:
        ctx: the rank.
        step: in which one rank is held up.
        number: of steps.
        holds_up: the class and the name of the method that holds up the late rank.
        note: what no other steps of the test are called.

    Raises:
        torch.distributed.DistStoreError: a rank waits for the late one.
    """
    for count in range(number):
        keys = [f"{note}, step {count}: rank {rank} has ended" for rank in range(ctx.world_size)]

        def comes(others: tuple[str, ...] = (*keys[: ctx.rank], *keys[ctx.rank + 1 :])) -> None:
            ctx.store.wait(list(others), PATIENCE)

        ctx.barrier()
        with _holding_up(holds_up, comes):
            _done(ctx, step)
        ctx.store.set(keys[ctx.rank], "yes")


@contextlib.contextmanager
def _holding_up(holds_up: tuple[type, str], comes: Callable[[], None]) -> Iterator[None]:
    with mock.patch.object(*holds_up, lambda held: comes()):
        yield


def _done(ctx: Context, step: Step[object]) -> None:
    step()
    if ctx.device.type == "cuda":
        torch.cuda.synchronize()
