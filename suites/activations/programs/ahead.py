"""Activations that go to the host while the device computes on, and come back before backward asks for them."""

from __future__ import annotations

from collections import deque

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from pytest_gpuperf import Context
from suites.activations.programs.techniques import Forward, Moved, parameter_of, under

AHEAD = 3
"""Tensors that may be on their way in either direction at a time: what one block saves."""


def offload_ahead(ctx: Context, model: nn.Sequential, *, moved: Moved = lambda tensor, copy: None) -> Forward:
    """Everything waits in pinned memory; copies have a stream of their own. ``moved`` is shown each of them."""

    def hooks() -> saved_tensors_hooks:
        ferry = Ferry(ctx, model, moved)
        return saved_tensors_hooks(ferry.pack, ferry.unpack)

    return under(hooks, model)


class Ferry:
    """Takes what one forward saves to the host and back.

    Backward asks for tensors in the reverse order, more or less: whenever it asks for one, those saved just before it
    are on their way as well. No tensor is freed before the current stream has waited for its copy, so that the
    allocator may reuse it at once.
    """

    def __init__(self, ctx: Context, model: nn.Module, moved: Moved) -> None:
        self._device = ctx.device
        self._stays = parameter_of(model)
        self._moved = moved
        self._side = torch.cuda.Stream(ctx.device) if ctx.device.type == "cuda" else None
        self._hosts: list[torch.Tensor] = []
        self._leaving: deque[tuple[torch.Tensor, torch.cuda.Event | None]] = deque()
        self._coming: dict[int, tuple[torch.Tensor, torch.cuda.Event | None]] = {}

    def pack(self, tensor: torch.Tensor) -> int | torch.Tensor:
        """Sends a tensor away; returns its number, or the tensor if it stays."""
        if self._stays(tensor):
            return tensor
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._side is not None)
        self._leaving.append((tensor, self._copy(copy, tensor)))
        self._moved(tensor, copy)
        self._hosts.append(copy)
        self._let_go(AHEAD)
        return len(self._hosts) - 1

    def unpack(self, saved: int | torch.Tensor) -> torch.Tensor:
        """The tensor, on the device."""
        if isinstance(saved, torch.Tensor):
            return saved
        self._let_go(0)
        for number in range(saved, max(saved - AHEAD, 0) - 1, -1):
            if number not in self._coming:
                # Of the current stream's memory: the side stream waits for it before it writes.
                there = torch.empty_like(self._hosts[number], device=self._device)
                self._coming[number] = there, self._copy(there, self._hosts[number])
        tensor, event = self._coming.pop(saved)
        self._wait(event)
        return tensor

    def _copy(self, to: torch.Tensor, source: torch.Tensor) -> torch.cuda.Event | None:
        if self._side is None:
            to.copy_(source)
            return None
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            to.copy_(source, non_blocking=True)
        event = torch.cuda.Event()
        event.record(self._side)
        return event

    def _let_go(self, most: int) -> None:
        while len(self._leaving) > most:
            _, event = self._leaving.popleft()
            self._wait(event)

    def _wait(self, event: torch.cuda.Event | None) -> None:
        if event is not None:
            torch.cuda.current_stream().wait_event(event)
