"""A node of the run, as the controller reaches it: its actor, and whether it still answers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayError, RayTaskError

from pytest_gpuperf.features.cluster.failures import NodeLostError
from pytest_gpuperf.features.cluster.wire import NodeFacts

_PINGS = 5
_MOMENT = 0.1  # seconds that a node has whose answer is read late: it may be there
_LOOK = 1.0  # seconds between looks at whether a node that works for long still answers


@dataclass(slots=True, eq=False)
class Member:
    """A node that holds ranks of the run, from when its actor is up until the node is lost."""

    name: str
    """As reports have it."""
    address: str
    """IP address by which other nodes reach it."""
    bundle: int
    """Its number in the placement group."""
    slots: int
    """GPUs that the run has there; without GPUs, its CPUs as Ray counts them."""
    actor: Any
    facts: NodeFacts
    patience: float
    """Seconds in which it must answer what it can answer at once, or in the few seconds that it takes to kill ranks."""
    daemonless: Callable[[], str] = str
    """Returns that Ray's daemon on the node of pytest has ended, which ends all hosts; empty text while it lives."""
    cut_off: Callable[[], str] = str
    """Returns why no node can come any more; empty text if one can."""
    lost: str = ""
    """How it was lost; empty as long as it answers."""
    offset: float = 0.0
    """Seconds by which its ``time.monotonic`` is ahead of this process's."""
    _told: list[Callable[[], None]] = field(default_factory=list)

    def call(self, method: str, *args: Any, wake: bool = False) -> Any:
        """Calls a method of the node's host; returns Ray's reference to the result.

        Args:
            method: its name.
            args: its arguments.
            wake: whether it may run beside another.

        Raises:
            NodeLostError: the node is lost.
        """
        if self.lost:
            raise NodeLostError(self.lost)
        function = getattr(self.actor, method)
        return (function.options(concurrency_group="wake") if wake else function).remote(*args)

    def result(self, reference: Any, timeout: float | None = None, *, since: float | None = None) -> Any:
        """The result of a call.

        Args:
            reference: what ``call`` returned.
            timeout: seconds after which the node is taken for lost.
            since: when they begin, by ``time.monotonic``; now if it is not given. Nodes that were asked together have
                one deadline, however many of them are silent.

        Raises:
            NodeLostError: the node is lost.
        """
        timeout = self.patience if timeout is None else timeout
        left = timeout if since is None else since + timeout - time.monotonic()
        try:
            return ray.get(reference, timeout=max(left, _MOMENT))
        except GetTimeoutError:
            self.lose_silent(timeout)
        except RayTaskError as error:
            raise unwrap_error(error) from None
        except RayError as error:
            self.lose_by(error)
        raise NodeLostError(self.lost)

    def await_answer(self, reference: Any, timeout: float) -> bool:
        """Whether a call has a result, or fails, within so many seconds; a node that takes longer is not lost."""
        return bool(ray.wait([reference], timeout=timeout)[0])

    def lose(self, reason: str) -> None:
        """Takes the node for lost, and does not ask it again."""
        if not self.lost:
            self.lost = reason
            ray.kill(self.actor)  # waits for nothing
            for tell in self._told:
                tell()

    def lose_by(self, error: BaseException) -> None:
        """Takes the node for lost by what Ray raised. Ray raises the same if it has ended the hosts of all nodes."""
        self.lose(self.daemonless() or say_gone(self.name, error))

    def story(self) -> str:
        """Return how the node was lost, and why none can come in its place."""
        return "; ".join(dict.fromkeys(filter(None, (self.lost, self.cut_off()))))

    def call_when_lost(self, tell: Callable[[], None]) -> None:
        """Calls this when the node is lost."""
        self._told.append(tell)

    def forget(self, tell: Callable[[], None]) -> None:
        """Calls this no more."""
        self._told.remove(tell)

    def compare_clocks(self) -> None:
        """Finds the offset of the node's clock: of several answers, the one that came soonest is taken.

        Raises:
            NodeLostError: the node is lost.
        """
        found = []
        for _ in range(_PINGS):
            began = time.monotonic()
            there = self.result(self.call("clock"))
            ended = time.monotonic()
            found.append((ended - began, there - (began + ended) / 2))
        self.offset = min(found)[1]

    def lose_silent(self, timeout: float) -> None:
        """Takes the node for lost, because it did not answer within so many seconds."""
        self.lose(f"node {self.name} did not answer within {timeout:g} s: it is stopped, cut off or overloaded")


def await_long_results(asked: Sequence[tuple[Member, Any]], timeout: float) -> list[Any]:
    """The results of calls that may take long. Meanwhile each node must answer what it can answer at once.

    Args:
        asked: nodes, each with what ``call`` returned.
        timeout: seconds after which a node is taken for lost, even if it answers.

    Raises:
        NodeLostError: a node is lost. All that are silent with it are taken for lost as well.
    """
    until = time.monotonic() + timeout
    waiting = list(asked)
    while waiting := [(member, reference) for member, reference in waiting if not member.await_answer(reference, 0.0)]:
        if waiting[0][0].await_answer(waiting[0][1], _LOOK):
            continue
        since = time.monotonic()
        pings = [(member, member.call("clock", wake=True)) for member, _ in waiting if not member.lost]
        for member, ping in pings:
            with contextlib.suppress(NodeLostError):
                member.result(ping, since=since)
        for member, _ in waiting:
            if time.monotonic() > until:
                member.lose_silent(timeout)
            if member.lost:
                raise NodeLostError(member.lost)
    return [member.result(reference) for member, reference in asked]


def unwrap_error(error: RayTaskError) -> BaseException:
    """What a method of the host raised; what Ray made of it, if it could not be pickled."""
    cause: object = error.cause
    return cause if isinstance(cause, BaseException) else error


def say_gone(name: str, error: BaseException) -> str:
    """How a node was lost, by Ray's own report.

    Args:
        name: the node's.
        error: what Ray raised.
    """
    how = "Ray's daemon on it ended, or it is cut off"
    if isinstance(error, OutOfMemoryError):
        how = "Ray killed its host, since the node had no memory left"
    return f"node {name} is gone: {how} ({type(error).__name__})"
