"""Tasks on their way to the nodes."""

from __future__ import annotations

import weakref
from typing import Any

import ray

from pytest_gpuperf.features.cluster.wire import count_bytes, pack
from pytest_gpuperf.ranks.channel import LARGE, Parcel


class Shipping:
    """Sends tasks to nodes."""

    def __init__(self) -> None:
        self._shipped: tuple[weakref.ref[Parcel], Any] | None = None
        """The last large task, and Ray's reference to it."""

    def send(self, task: Parcel) -> Any:
        """A task as an argument: what is large goes to Ray's object store, which takes it to each node once."""
        if count_bytes(task) < LARGE:
            return pack(task)
        if self._shipped is None or self._shipped[0]() is not task:
            self._shipped = weakref.ref(task, self._drop), ray.put(pack(task))
        return self._shipped[1]

    def _drop(self, _: object) -> None:
        self._shipped = None
