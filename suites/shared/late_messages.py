"""Messages that arrive as late as they may: what a program does not wait for it does not get. Of gloo's ranks."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d


class _Arriving:
    """A message that is there when somebody has waited for it, and not before."""

    def __init__(self, work: Any, arrived: torch.Tensor, to: torch.Tensor) -> None:
        self._work, self._arrived, self._to = work, arrived, to
        self._waited = False

    def wait(self) -> bool:
        """Waits as the work does."""
        self.end()
        self._to.copy_(self._arrived)
        return True

    def end(self) -> None:
        """Receives what nobody has waited for; gloo would wait for another message the second time."""
        if not self._waited:
            self._work.wait()
        self._waited = True


@contextlib.contextmanager
def late_messages() -> Iterator[None]:
    """Within it ``irecv`` leaves NaN behind, or 0 in whole numbers, until its work is waited for."""
    receive = dist.irecv
    messages: list[_Arriving] = []  # none is dropped on its way, which would leave its sender waiting

    def late(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> _Arriving:
        to = tensor.detach()
        to.fill_(math.nan if to.is_floating_point() else 0)
        arrived = torch.empty_like(to)
        messages.append(_Arriving(receive(arrived, *args, **kwargs), arrived, to))
        return messages[-1]

    # P2POp compares what it is given with the second one.
    with mock.patch.object(dist, "irecv", late), mock.patch.object(distributed_c10d, "irecv", late):
        yield
        for message in messages:
            message.end()
