"""The rank's second thread: tells which collectives were issued while the first one is stuck in one of them."""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Mapping
from typing import Any

from pytest_gpuperf.ranks.channel import Channel
from pytest_gpuperf.ranks.collectives import Collective, issued_since, latest
from pytest_gpuperf.ranks.torch_internals import flight_recorder, group_members


class Informant:
    """Answers inquiries on a connection of its own; it costs nothing until it is asked."""

    def __init__(self, connection: Channel, backend: str) -> None:
        self.since = 0
        """Collectives that were issued before, ``time.time_ns``, are not told of."""
        self._connection = connection
        self._dump = flight_recorder(backend)
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
                self._connection.send((self._collectives(), group_members()))

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
            record: Mapping[str, Any] = pickle.loads(self._dump())
            return record
        return None
