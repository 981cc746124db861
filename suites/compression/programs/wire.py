"""Counts what a rank sends while a hook of DistributedDataParallel averages gradients. Runs on ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from suites.shared.traffic import Call, Traffic


@contextlib.contextmanager
def traffic_of_callbacks_too() -> Iterator[list[Call]]:
    """The collectives that this rank calls in the block, those of the futures' callbacks included.

    gloo runs callbacks on threads of its own, where no mode of this thread is on.
    """
    calls: list[Call] = []

    def counting(register: Callable[..., Any]) -> Callable[..., Any]:
        def registered(future: Any, callback: Callable[[Any], Any]) -> Any:
            def run(done: Any) -> Any:
                # Where a mode is on already, as with NCCL, a second one would count all over again.
                seen = any(isinstance(mode, Traffic) for mode in _get_current_dispatch_mode_stack())
                with contextlib.nullcontext() if seen else Traffic(calls):
                    return callback(done)

            return register(future, run)

        return registered

    with contextlib.ExitStack() as stack:
        for name in ("then", "add_done_callback"):
            counts = counting(getattr(torch._C.Future, name))
            stack.enter_context(mock.patch.object(torch._C.Future, name, counts))
        stack.enter_context(Traffic(calls))
        yield calls
