"""The rank's second thread: tells which collectives were issued while the first one is stuck in one of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d

from pytest_gpuperf.ranks.channel import Channel
from pytest_gpuperf.ranks.collectives import Collective, latest, parse

_DUMPS = {"gloo": "_dump_fr_trace_json", "nccl": "_dump_nccl_trace_json"}


class Informant:
    """Answers inquiries on a connection of its own; it costs nothing until it is asked."""

    def __init__(self, connection: Channel, backend: str) -> None:
        self.since = 0
        """Collectives that were issued before, ``time.time_ns``, are not told of."""
        self._connection = connection
        # NCCL's recorder is one of its own.
        self._dump: Callable[[], bytes] | None = getattr(_distributed_c10d, _DUMPS[backend], None)
        threading.Thread(target=self._serve, name="gpuperf informant", daemon=True).start()

    def silent(self) -> bool:
        """Whether nothing was issued since ``since``, no send and no receive either; False where that cannot be told.

        The group's own first barrier is in the record: one without entries records nothing.
        """
        if self._dump is None:
            return False
        try:
            moment = latest(self._dump())
        except Exception:  # a recorder that another torch keeps otherwise
            return False
        return moment is not None and moment < self.since

    def _serve(self) -> None:
        with contextlib.suppress(EOFError, OSError):  # the controller is gone, or this process is
            while True:
                self._connection.receive()
                self._connection.send((self._collectives(), _members()))

    def _collectives(self) -> list[Collective] | None:
        if self._dump is None:
            return None
        try:
            return parse(self._dump(), self.since)
        except Exception:  # a recorder that another torch keeps otherwise is no reason to end
            return None


def _members() -> dict[str, tuple[int, ...]]:
    world = distributed_c10d._world
    # Groups that this rank is no member of have ranks here, under one key for all, and no name.
    # And the program may destroy one at this moment, on its own thread.
    named = [(name, world.pg_group_ranks.get(group)) for group, name in list(world.pg_names.items())]
    return {name: tuple(ranks) for name, ranks in named if ranks is not None}
