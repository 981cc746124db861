"""What a node's host and the controller say to each other, through Ray.

Ray pickles it. What is large lies in Ray's object store, once for each node, and is no part of the pickle.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.ranks.channel import Parcel
from pytest_gpuperf.ranks.endings import Answered, Ending
from pytest_gpuperf.ranks.excerpt import Excerpt


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node tells of itself when the run begins."""

    software: Mapping[str, str]
    """Versions that must be the same on all nodes, by name; empty text for what is not installed."""
    machine: Machine
    """Its GPUs, as far as Ray gave them to the run."""
    fabric: str
    """Label of the network between nodes: ``ib``, ``roce`` or ``tcp``."""


@dataclass(frozen=True, slots=True)
class Up:
    """The ranks of a node are up, or are not."""

    pids: tuple[int, ...] = ()
    store_port: int | None = None
    """Port of rank 0's store, if that rank is among them."""
    error: str = ""
    """Why they could not be started; empty if they are up."""


@dataclass(slots=True)
class News:
    """What a node tells of a pool's ranks."""

    endings: dict[int, Ending] = field(default_factory=dict)
    """How ranks ended the request, by rank."""
    heard: list[tuple[int, str, str]] = field(default_factory=list)
    """What they printed, where somebody listens: rank, stream, text."""
    output: list[tuple[int, str, Excerpt]] = field(default_factory=list)
    """What is to be shown of it, where nobody listens: rank, stream, text."""


def pack(parcel: Parcel) -> Parcel:
    """A parcel as Ray is to carry it: without a copy of what is large."""
    return Parcel(pickle.PickleBuffer(parcel.stream), [_make_buffer(part) for part in parcel.buffers])  # type: ignore[arg-type]


def unpack(parcel: Parcel) -> Parcel:
    """A parcel that Ray carried, in memory of this process: Ray's own is read-only, and is freed by it."""
    return Parcel(bytearray(memoryview(parcel.stream)), [bytearray(memoryview(part)) for part in parcel.buffers])


def count_bytes(parcel: Parcel) -> int:
    """Bytes of a parcel."""
    return sum(memoryview(part).nbytes for part in (parcel.stream, *parcel.buffers))


def pack_endings(endings: Mapping[int, Ending]) -> dict[int, Ending]:
    """Endings as Ray is to carry them."""
    return {
        rank: replace(ending, payload=pack(ending.payload)) if isinstance(ending, Answered) else ending
        for rank, ending in endings.items()
    }


def unpack_endings(endings: Mapping[int, Ending], offset: float) -> dict[int, Ending]:
    """Endings that Ray carried, with moments of this process's clock.

    Args:
        endings: by rank.
        offset: seconds by which the node's ``time.monotonic`` is ahead of this process's.
    """
    return {
        rank: replace(ending, payload=unpack(ending.payload))
        if isinstance(ending, Answered)
        else replace(ending, at=ending.at - offset)
        for rank, ending in endings.items()
    }


def _make_buffer(part: Any) -> pickle.PickleBuffer:
    # Plain bytes: at another format, an array's of ctypes, Ray's deserializer ends by SIGSEGV.
    plain = part.raw() if isinstance(part, pickle.PickleBuffer) else memoryview(part)
    return pickle.PickleBuffer(plain)
