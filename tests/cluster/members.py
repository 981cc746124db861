"""Nodes whose hosts are in this process, without Ray; their methods run on threads as Ray would have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

from pytest_gpuperf.features.cluster.failures import NodeLostError
from pytest_gpuperf.features.cluster.member import Member
from pytest_gpuperf.features.cluster.node_host import NodeHost
from pytest_gpuperf.features.cluster.wire import NodeFacts
from tests.fake_gpus import gpu, machine_of

SOON = 60.0  # seconds; generous, since a machine may be busy


class MemberHere(Member):
    """A node whose host is in this process."""

    host: NodeHost
    threads: Mapping[bool, ThreadPoolExecutor]
    """Pools of one thread each: for calls that may run next to another one, and for all other calls."""

    def call(self, method: str, *args: Any, wake: bool = False) -> Any:
        if self.lost:
            raise NodeLostError(self.lost)
        return self.threads[wake].submit(getattr(self.host, method), *args)

    def result(self, reference: Any, timeout: float | None = None, *, since: float | None = None) -> Any:
        if self.lost:
            raise NodeLostError(self.lost)
        return reference.result(SOON)

    def await_answer(self, reference: Any, timeout: float) -> bool:
        return bool(wait([reference], timeout).done)


def member(name: str, gpus: Sequence[int], everything: Sequence[int] = ()) -> MemberHere:
    """A node with these GPUs; nothing else of its host is made.

    Args:
        name: its name.
        gpus: their numbers; they are those of the run.
        everything: the numbers of all GPUs of its machine; those of the run if not given.
    """
    every = tuple(gpu(index).uuid for index in everything or gpus)
    machine = replace(machine_of(1), gpus=tuple(map(gpu, gpus)), everything=every)
    made = MemberHere(name, "10.0.0.1", 0, len(gpus), None, NodeFacts({}, machine, "tcp"), SOON)
    made.host = object.__new__(NodeHost)  # whose own beginning asks Ray
    made.host._machine, made.host._leases, made.host._watch = machine, None, None
    made.threads = {wake: ThreadPoolExecutor(1) for wake in (False, True)}
    return made
