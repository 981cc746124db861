"""Python objects that ranks exchange: each call is seen, and the lists that it fills are altered. Runs in ranks.

The bytes of pickled objects cannot be altered below, because a wrong byte only makes the program raise. So the
functions themselves are replaced while a program runs. Names that were imported from ``torch.distributed`` are not.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from pytest_gpuperf.features.mutating import digests, places
from pytest_gpuperf.features.mutating.c10d_internals import find_caller_frame
from pytest_gpuperf.features.mutating.faults import Calls, Family, Kind, Site
from pytest_gpuperf.features.mutating.record import Record


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A function that exchanges objects."""

    family: Family
    filled: str
    """The argument with the list that it fills."""
    given: str
    """The argument with what this rank sends."""


_EXCHANGES: Mapping[str, _Exchange] = {
    "all_gather_object": _Exchange(Family.OBJECTS, "object_list", "obj"),
    "gather_object": _Exchange(Family.OBJECTS, "object_gather_list", "obj"),
    "broadcast_object_list": _Exchange(Family.OBJECT_COPY, "object_list", "object_list"),
    "scatter_object_list": _Exchange(Family.OBJECT_COPY, "scatter_object_output_list", "scatter_object_input_list"),
}


class Objects:
    """Sees the exchanges of objects of one program."""

    def __init__(self, record: Record) -> None:
        """Has seen nothing.

        Args:
            record: takes note of the calls.
        """
        self._record = record
        self._previous: list[Any] = []
        self._within = threading.local()

    @property
    def within(self) -> bool:
        """Whether this thread exchanges objects now, so that its operators carry pickled ones."""
        return bool(getattr(self._within, "now", False))

    @contextmanager
    def install(self) -> Iterator[None]:
        """Sees what is called within."""
        real = {name: getattr(dist, name) for name in _EXCHANGES}
        for name, function in real.items():
            setattr(dist, name, self._see_call(name, function))
        try:
            yield
        finally:
            for name, function in real.items():
                setattr(dist, name, function)

    def _see_call(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        signature = _read_signature(real)

        @functools.wraps(real)
        def exchange(*args: Any, **kwargs: Any) -> Any:
            arguments = signature.bind(*args, **kwargs).arguments
            group = arguments.get("group") or dist.group.WORLD
            if group is None or self.within or dist.get_rank(group) < 0:
                return real(*args, **kwargs)
            site = self._see(name, arguments, group)
            filled = arguments.get(_EXCHANGES[name].filled) or []
            before = list(filled)
            self._within.now = True
            try:
                result = real(*args, **kwargs)
            finally:
                self._within.now = False
            if self._record.is_faulty(site):
                self._alter(name, filled, before, arguments)
            return result

        return exchange

    def _see(self, name: str, arguments: Mapping[str, Any], group: Any) -> Site:
        exchange = _EXCHANGES[name]
        file, line, operation, by_torch = places.find_place(find_caller_frame(), name)
        site = Site(file, line, operation if by_torch else name, places.describe_group(group), 0)
        with self._record.lock:
            self._record.see(site, lambda: Calls(exchange.family, 0, dist.get_world_size(group)))
            if exchange.family is Family.OBJECTS:
                digests.add(self._record.find_sent_digest(site), arguments["obj"])
        return site

    def _alter(self, name: str, filled: list[Any], before: list[Any], arguments: Mapping[str, Any]) -> None:
        fault = self._record.fault
        assert fault is not None
        right = list(filled)
        match fault.kind:
            case Kind.SWAPPED:
                filled[:] = right[-1:] + right[:-1]
            case Kind.STALE if len(self._previous) == len(right):
                filled[:] = self._previous
            case Kind.SKIPPED:
                own = _EXCHANGES[name].family is Family.OBJECTS
                filled[:] = [arguments["obj"]] * len(right) if own else before
        self._previous = right
        self._record.applied += 1
        self._record.changed += _compute_digest(right) != _compute_digest(filled)


@functools.cache  # it takes as long as a small collective
def _read_signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def _compute_digest(values: list[Any]) -> bytes:
    digest = digests.make_digest()
    digests.add(digest, values)
    return digest.digest()
