"""What NCCL's own log says: how ranks are connected, and which algorithm moved how many bytes.

Source: the formats that NCCL 2.28 and 2.30 print with ``NCCL_DEBUG=INFO`` (init.cc, transport/*.cc, enqueue.cc). NCCL
connects ranks when they first need it, so a log is read after the collective that it is to tell of.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ENVIRONMENT = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,TUNING,NET,P2P,SHM"}
"""What makes NCCL write what is read here."""

# The number in brackets is the GPU's, by NVML; before NCCL 2.19 its bus id. Of P2P and SHM the line says no direction.
_CONNECTION = re.compile(
    r"Channel (\d+)(?:/\d+)? : (\d+)\[[0-9a-f]+\] -> (\d+)\[[0-9a-f]+\](?: \[(?:send|receive)\])? "
    r"via (\S+(?: pointer\S*)?)"
)
_COMMUNICATOR = re.compile(r"nRanks (\d+) nNodes (\d+) localRanks (\d+) localRank (\d+)")
_CHOICE = re.compile(r"(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}")
_CHANNELS = re.compile(r"(\d+) coll channels, \d+ collnet channels, \d+ nvls channels, (\d+) p2p channels")
_VERSION = re.compile(r"NCCL version (\S+)")
_REPORTED = re.compile(r"NCCL WARN (.+)")
# What follows a transport's name there: the number of a network's device, and who serves it.
_SERVED = re.compile(r"^(NET/[^/]+)/\d+(?:\(\d+\))?")


@dataclass(frozen=True, slots=True)
class Connection:
    """One channel from a rank to another."""

    channel: int
    sender: int
    receiver: int
    transport: str
    """``P2P/CUMEM``, ``P2P/IPC/read``, ``SHM/direct/direct``, ``NET/Socket``; without a network device's number."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What NCCL chose for a collective."""

    op: str
    """``AllReduce``, as NCCL calls it."""
    nbytes: int
    """Elements of one rank's call, in bytes."""
    algorithm: str
    """``Ring``, ``Tree``, ``NVLS``, ..."""
    protocol: str
    """``LL``, ``LL128`` or ``Simple``."""
    channels: int


@dataclass(frozen=True, slots=True)
class Communicator:
    """How NCCL sees the ranks of a communicator."""

    ranks: int
    nodes: int
    local_ranks: int
    """On this rank's node."""


@dataclass(frozen=True, slots=True)
class NcclLog:
    """What one process's log says, in its order."""

    version: str
    """Empty if the log does not tell."""
    communicators: tuple[Communicator, ...]
    connections: tuple[Connection, ...]
    choices: tuple[Choice, ...]
    """Rank 0's log alone has them, and none of sends and receives."""
    coll_channels: tuple[int, ...]
    """Of each communicator."""
    p2p_channels: tuple[int, ...]
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> NcclLog:
        """Reads a log."""
        version, channels = _VERSION.search(text), _CHANNELS.findall(text)
        return cls(
            version="" if version is None else version[1],
            communicators=tuple(
                dict.fromkeys(
                    Communicator(int(ranks), int(nodes), int(local))
                    for ranks, nodes, local, _ in _COMMUNICATOR.findall(text)
                )
            ),
            connections=tuple(
                Connection(int(channel), int(sender), int(receiver), _transport(via))
                for channel, sender, receiver, via in _CONNECTION.findall(text)
            ),
            choices=tuple(
                Choice(op, int(nbytes), algorithm, protocol, int(last) - int(first) + 1)
                for op, nbytes, algorithm, protocol, first, last in _CHOICE.findall(text)
            ),
            coll_channels=tuple(int(coll) for coll, _ in channels),
            p2p_channels=tuple(int(p2p) for _, p2p in channels),
            warnings=tuple(_REPORTED.findall(text)),
        )

    @property
    def transports(self) -> frozenset[str]:
        """All that connect this process's rank with others."""
        return frozenset(connection.transport for connection in self.connections)

    def over(self, transport: str) -> bool:
        """Whether every connection, and at least one, is by a transport or a kind of it: ``P2P``, ``P2P/CUMEM``."""
        return bool(self.connections) and all(
            found == transport or found.startswith(f"{transport}/") for found in self.transports
        )


def _transport(via: str) -> str:
    return _SERVED.sub(r"\1", via)
