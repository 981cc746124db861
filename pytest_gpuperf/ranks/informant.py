"""The rank's second thread: tells which collectives were issued while the first one is stuck in one of them."""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Callable, Mapping
from typing import Any

from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d

from pytest_gpuperf.ranks.channel import Channel
from pytest_gpuperf.ranks.collectives import Collective, issued_since, latest

# Not the recorders' JSON, which takes twice as long to make and to read.
_DUMPS = {"gloo": "_dump_fr_trace", "nccl": "_dump_nccl_trace"}


class Informant:
    """Answers inquiries on a connection of its own; it costs nothing until it is asked."""

    def __init__(self, connection: Channel, backend: str) -> None:
        self.since = 0
        """Collectives that were issued before, ``time.time_ns``, are not told of."""
        self._connection = connection
        # NCCL's recorder is one of its own.
        self._dump: Callable[[bool, bool, bool], bytes] | None = getattr(_distributed_c10d, _DUMPS[backend], None)
        threading.Thread(target=self._serve, name="gpuperf informant", daemon=True).start()

    def silent(self) -> bool:
        """Whether nothing was issued since ``since``, no send and no receive either; False where that cannot be told.

        The group's own first barrier is in the record: one without entries records nothing.
        """
        record = self._record()
        try:
            moment = None if record is None else latest(record)
        except Exception:  # a recorder that another torch keeps otherwise
            return False
        return moment is not None and moment < self.since

    def _serve(self) -> None:
        with contextlib.suppress(EOFError, OSError):  # the controller is gone, or this process is
            while True:
                self._connection.receive()
                self._connection.send((self._collectives(), _members()))

    def _collectives(self) -> list[Collective] | None:
        record = self._record()
        try:
            return None if record is None else issued_since(record, self.since)
        except Exception:  # a recorder that another torch keeps otherwise is no reason to end
            return None

    def _record(self) -> Mapping[str, Any] | None:
        if self._dump is None:
            return None
        with contextlib.suppress(Exception):  # a recorder that another torch keeps otherwise
            record: Mapping[str, Any] = pickle.loads(self._dump(True, False, False))  # collectives, no stacks, all
            return record
        return None


def _members() -> dict[str, tuple[int, ...]]:
    world = distributed_c10d._world
    # Groups that this rank is no member of have ranks here, under one key for all, and no name.
    # And the program may destroy one at this moment, on its own thread.
    named = [(name, world.pg_group_ranks.get(group)) for group, name in list(world.pg_names.items())]
    return {name: tuple(ranks) for name, ranks in named if ranks is not None}
