"""Watches the GPUs of all nodes while ranks measure on them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from pytest_gpuperf.features.cluster.failures import NodeLostError
from pytest_gpuperf.features.cluster.member import Member
from pytest_gpuperf.hardware.device import Observation, Xid


class ClusterWatch:
    """A watch on each node, from the start of a block to its end."""

    def __init__(self, watched: Sequence[tuple[Member, Sequence[str]]]) -> None:
        """Begins nothing yet.

        Args:
            watched: nodes, each with the UUIDs of GPUs to observe.
        """
        self._watched = watched
        self.seen: tuple[Observation, ...] = ()
        """All observations, of each GPU in order; known once it is over."""
        self.xids: tuple[Xid, ...] = ()
        """The errors that drivers reported, known once it is over."""

    def __enter__(self) -> Self:
        """Returns once every GPU was looked at."""
        self._answers("watch", [[list(gpus)] for _, gpus in self._watched])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Looks once more. If a node is lost meanwhile, the run itself fails and reports it."""
        for seen, xids in self._answers("unwatch", [[] for _ in self._watched]):
            self.seen += seen
            self.xids += xids

    def _answers(self, method: str, arguments: Sequence[Sequence[Any]]) -> list[Any]:
        asked: list[tuple[Member, Any]] = []
        answers, since = [], time.monotonic()
        for (member, _), args in zip(self._watched, arguments, strict=True):
            if not member.lost:
                asked.append((member, member.call(method, *args)))
        for member, reference in asked:
            try:
                answers.append(member.result(reference, since=since))
            except NodeLostError:
                continue
        return answers
