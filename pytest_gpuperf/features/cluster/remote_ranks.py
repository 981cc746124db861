"""The ranks of a pool that a node of the cluster has, as the controller's pool holds them."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ray.exceptions import RayError, RayTaskError

from pytest_gpuperf.features.cluster.failures import NodeLostError
from pytest_gpuperf.features.cluster.member import Member, unwrap_error
from pytest_gpuperf.features.cluster.wire import News, unpack_endings
from pytest_gpuperf.ranks.channel import Parcel
from pytest_gpuperf.ranks.endings import Died, Ending
from pytest_gpuperf.ranks.excerpt import Excerpt
from pytest_gpuperf.ranks.messages import Account
from pytest_gpuperf.ranks.node_ranks import Request

Ship = Callable[[Parcel], Any]
"""Makes of a task what the host's method is called with."""


class RemoteRanks:
    """Ranks that a node's host has started, and holds.

    The host is asked for news as soon as a request is sent, and answers when there are some: nobody polls. Whatever
    else is asked meanwhile wakes it first.
    """

    def __init__(self, member: Member, pool: int, part: range, pids: tuple[int, ...], ship: Ship) -> None:
        """Holds ranks that are up.

        Args:
            member: the node.
            pool: the number of their pool.
            part: which of the pool's ranks they are.
            pids: their process ids on the node.
            ship: makes of a task what the host is sent.
        """
        self.pids = pids
        self._member = member
        self._pool = pool
        self._part = part
        self._ship = ship
        self._waiting: set[int] = set()
        self._asked: Any = None
        """A future of the news that the host was asked for; None if it was not."""
        self._heard: list[tuple[int, str, str]] = []
        self._output: list[tuple[int, str, Excerpt]] = []
        self._bell: int | None = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Becomes readable when the host has answered, or is lost; None once it is closed."""
        self._lock = threading.Lock()  # Ray answers on a thread of its own
        member.call_when_lost(self._ring)

    def post(self, request: Request, task: Parcel) -> dict[int, Ending]:
        """Sends a request to every rank; returns how those ended whose node is lost."""
        self._waiting = set(self._part)
        try:
            self._expect(self._member.call("post", self._pool, request, self._ship(task)))
        except NodeLostError:
            return self._report_all_lost()
        return {}

    def list_awaited(self) -> Sequence[object]:
        """What becomes readable when there may be news; nothing once all ranks have ended the request."""
        return [self._bell] if self._waiting else []

    def news(self, ready: Collection[object]) -> dict[int, Ending]:
        """How ranks ended the request since the last call; waits for none.

        Args:
            ready: of what is awaited, and of others, what is readable.
        """
        if self._bell not in ready or self._bell is None:
            return {}
        os.eventfd_read(self._bell)
        if self._member.lost:
            return self._report_all_lost()
        if self._asked is None or not self._asked.done():
            return {}
        try:
            news: News = self._asked.result()
        except RayTaskError as error:
            raise unwrap_error(error) from None
        except RayError as error:
            self._member.lose_by(error)
            return self._report_all_lost()
        self._asked = None
        self._take_printed(news)
        self._waiting.difference_update(news.endings)
        if self._waiting:
            with contextlib.suppress(NodeLostError):  # which rings the bell
                self._expect(self._member.call("news", self._pool))
        return unpack_endings(news.endings, self._member.offset)

    def give_up(self, ranks: Collection[int]) -> Callable[[], Mapping[int, Ending]]:
        """Asks ranks that have not ended the request for their stacks; what it returns waits for these."""
        answer = self._ask("give_up", list(ranks))

        def await_ended() -> Mapping[int, Ending]:
            stuck = answer()
            if stuck is None:
                return {rank: self._report_loss() for rank in ranks}
            return unpack_endings(stuck, self._member.offset)

        return await_ended

    def ask(self, ranks: Iterable[int], *, whole: bool) -> Callable[[], Mapping[int, Account]]:
        """Asks ranks what they do; what it returns waits for the accounts of those that answer in time.

        Args:
            ranks: which.
            whole: whether with what their flight recorders hold, which takes longer.
        """
        answer = self._ask("ask", list(ranks), whole)
        return lambda: answer() or {}

    def listen(self) -> Iterator[tuple[int, str, str]]:
        """All that ranks printed, and the host told with its news: rank, stream, text."""
        heard, self._heard = self._heard, []
        yield from heard

    def output(self) -> list[tuple[int, str, Excerpt]]:
        """What is to be shown of it: rank, stream, text."""
        output, self._output = self._output, []
        return output

    def debug(self, rank: int, run: int, terminal: Callable[[str], str]) -> bool:
        """Opens no debugger: on a node there is none."""
        return False

    def leave(self) -> None:
        """Ends the ranks: a node that is asked to waits until they have ended."""
        self.close()

    def close(self) -> None:
        """Ends the ranks: asks first, then kills."""
        self._end(ask_first=True)

    def kill(self, *, keep: int | None = None) -> None:
        """Ends the ranks at once, with everything they started; none is kept for a debugger."""
        self._end(ask_first=False)

    def _end(self, *, ask_first: bool) -> None:
        if self._bell is None:
            return
        self._waiting.clear()
        try:
            if (news := self._ask("end", ask_first)()) is not None:
                self._take_printed(news)
        finally:
            self.pids = ()
            self._member.forget(self._ring)
            with self._lock:
                os.close(self._bell)
                self._bell = None

    def _ask(self, method: str, *args: Any) -> Callable[[], Any]:
        """Calls a method of the host; what it returns waits for the result, which is None if the node is lost."""
        try:
            if self._asked is not None:
                self._member.call("wake", wake=True)
            reference, since = self._member.call(method, self._pool, *args), time.monotonic()
        except NodeLostError:
            return lambda: None

        def answer() -> Any:
            try:
                return self._member.result(reference, since=since)
            except NodeLostError:
                return None

        return answer

    def _expect(self, reference: Any) -> None:
        self._asked = reference.future()
        self._asked.add_done_callback(lambda _: self._ring())

    def _ring(self) -> None:
        with self._lock:
            if self._bell is not None:
                os.eventfd_write(self._bell, 1)

    def _take_printed(self, news: News) -> None:
        self._heard += news.heard
        self._output += news.output

    def _report_all_lost(self) -> dict[int, Ending]:
        waiting, self._waiting = sorted(self._waiting), set()
        return {rank: self._report_loss() for rank in waiting}

    def _report_loss(self) -> Died:
        return Died(-math.inf, None, lost=self._member.story())
