"""What NCCL's own log says: how ranks are connected, and which algorithm moved how many bytes.

Source: the formats that NCCL 2.28 and 2.30 print with ``NCCL_DEBUG=INFO`` (init.cc, transport/*.cc, enqueue.cc). NCCL
connects ranks when they first need it, so a log is read after the collective that it is to tell of. Logs of other
versions are read alike, because most of their lines are the same; ``known`` and what raises UnknownLog claim nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ENVIRONMENT = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,TUNING,NET,P2P,SHM"}
"""What makes NCCL write what is read here."""

VERSIONS = ("2.28", "2.30")
"""The versions of NCCL whose formats are known."""

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


class UnknownLog(LookupError):
    """NCCL's log is of a version whose format is not known."""

    def __init__(self, version: str) -> None:
        super().__init__(version)
        self.version = version

    def __str__(self) -> str:
        got = f"NCCL {self.version}" if self.version else "an NCCL whose version neither its log nor torch tells"
        return (
            f"the log is of {got}, expected {' or '.join(VERSIONS)}, whose formats are known: nothing is claimed from "
            "it; read its connections and choices with care, or use a known version"
        )


@dataclass(frozen=True, slots=True)
class NcclLog:
    """What one process's log says, in its order."""

    version: str
    """``2.28.9+cuda13.0``; empty if neither the log nor the rank's torch tells."""
    communicators: tuple[Communicator, ...]
    connections: tuple[Connection, ...]
    choices: tuple[Choice, ...]
    """Rank 0's log alone has them, and none of sends and receives."""
    coll_channels: tuple[int, ...]
    """The number of channels of each communicator."""
    p2p_channels: tuple[int, ...]
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, text: str, version_of_torch: str = "") -> NcclLog:
        """Reads a log.

        Args:
            text: The log.
            version_of_torch: The version of the NCCL that torch has loaded: only rank 0's log has it.
        """
        version, channels = _VERSION.search(text), _CHANNELS.findall(text)
        return cls(
            version=version_of_torch if version is None else version[1],
            communicators=tuple(
                dict.fromkeys(
                    Communicator(int(ranks), int(nodes), int(local))
                    for ranks, nodes, local, _ in _COMMUNICATOR.findall(text)
                )
            ),
            connections=tuple(
                Connection(int(channel), int(sender), int(receiver), _shorten_transport(via))
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
    def known(self) -> bool:
        """Whether the formats of this version are known."""
        return ".".join(self.version.split(".")[:2]) in VERSIONS

    def transport(self, sender: int, receiver: int) -> str:
        """Return the transport that connects one rank with another, for example ``P2P/CUMEM``.

        The sender's log tells it; the receiver's does so only if the connection goes over a network.

        Args:
            sender: A rank of the communicator.
            receiver: Another one.

        Raises:
            UnknownLog: The log is of a version whose format is not known.
            LookupError: The log has no such connection, or several kinds of it.
        """
        self._require_known()
        found = {one.transport for one in self.connections if (one.sender, one.receiver) == (sender, receiver)}
        if len(found) == 1:
            return found.pop()
        if found:
            raise LookupError(
                f"rank {sender} reaches rank {receiver} by {' and '.join(sorted(found))}: look at connections"
            )
        pairs = sorted({(one.sender, one.receiver) for one in self.connections})
        raise LookupError(
            f"NCCL's log of this rank has no connection from rank {sender} to rank {receiver}, only "
            f"{', '.join(f'{a} to {b}' for a, b in pairs) or 'none'}: ask rank {sender}, after a collective or a send "
            "between the two"
        )

    def choice(self, op: str, nbytes: int) -> Choice:
        """Return what NCCL chose for a collective the last time.

        Args:
            op: As torch.distributed names it: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``broadcast``.
            nbytes: Bytes of one rank's call as NCCL counts them: of an all_gather what one rank sends, of a
                reduce_scatter what one rank receives.

        Raises:
            UnknownLog: The log is of a version whose format is not known.
            LookupError: The log has no such choice.
        """
        self._require_known()
        if (found := self.find(op, nbytes)) is not None:
            return found
        seen = sorted({(one.op, one.nbytes) for one in self.choices})
        raise LookupError(
            f"NCCL's log of this rank has no choice for {op} of {nbytes} bytes, only "
            f"{', '.join(f'{name} of {size} bytes' for name, size in seen) or 'none'}: ask rank 0, after the "
            "collective; sends and all_to_all have no choices"
        )

    def find(self, op: str, nbytes: int) -> Choice | None:
        """Return the last choice for a collective, by torch's name; None if the log has none."""
        name = "".join(word.capitalize() for word in op.split("_"))
        return next((one for one in reversed(self.choices) if (one.op, one.nbytes) == (name, nbytes)), None)

    def _require_known(self) -> None:
        if not self.known:
            raise UnknownLog(self.version)

    @property
    def transports(self) -> frozenset[str]:
        """All that connect this process's rank with others."""
        return frozenset(connection.transport for connection in self.connections)

    def over(self, transport: str) -> bool:
        """Whether every connection, and at least one, is by a transport or a kind of it: ``P2P``, ``P2P/CUMEM``."""
        return bool(self.connections) and all(
            found == transport or found.startswith(f"{transport}/") for found in self.transports
        )


def _shorten_transport(via: str) -> str:
    return _SERVED.sub(r"\1", via)
