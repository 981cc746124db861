"""Tries connections between the nodes of a job, with packets of all sizes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

TIMEOUT = 5.0  # seconds
_SIZE = 256 * 2**10  # bytes, so that packets have the largest size
_MOST_PEERS = 64  # nodes that each node tries
_SMALL = b"gpuperf\n"


@dataclass(frozen=True, slots=True)
class Target:
    """A node that listens."""

    name: str
    address: str
    port: int


class Answering:
    """Listens for the probes of other nodes, and sends back how much arrived."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.port = int(server.sockets[0].getsockname()[1])

    @classmethod
    async def begin(cls, port: int = 0) -> Answering:
        """Return one that listens.

        Args:
            port: the port; 0 for any.
        """
        return cls(await asyncio.start_server(_answer, host="0.0.0.0", port=port))

    def close(self) -> None:
        """Ends it."""
        self._server.close()


async def probe(targets: Sequence[Target]) -> list[tuple[Target, str]]:
    """Return the targets that do not answer, each with the reason."""
    reasons = await asyncio.gather(*(_try(target) for target in targets))
    return [(target, why) for target, why in zip(targets, reasons, strict=True) if why]


def choose_peers(index: int, targets: Sequence[Target]) -> list[Target]:
    """Return the targets that a node tries: all others, or the next ones if there are many, and always the first.

    Args:
        index: the node's own place among the targets.
        targets: those of all nodes.
    """
    others = [*targets[index + 1 :], *targets[:index]]
    few = others[:_MOST_PEERS]
    return few if index == 0 or targets[0] in few else [*few, targets[0]]


async def _try(target: Target) -> str:
    writer: asyncio.StreamWriter | None = None
    passed = "no connection within"
    try:
        async with asyncio.timeout(TIMEOUT):
            reader, writer = await asyncio.open_connection(target.address, target.port)
            writer.write(_SMALL)
            await writer.drain()
            passed = "small packets get no answer within"
            if await reader.readline() != _SMALL:
                return "something else listens there"
            passed = "small packets pass, and large ones (MTU) get no answer within"
            writer.write(bytes(_SIZE - 1) + b"\n")
            await writer.drain()
            if await reader.readexactly(_SIZE) != bytes(_SIZE - 1) + b"\n":
                return "something else listens there"
    except TimeoutError:
        return f"{passed} {TIMEOUT:g} s, as behind a firewall"
    except (OSError, asyncio.IncompleteReadError) as error:
        return f"{getattr(error, 'strerror', None) or error}"
    finally:
        if writer is not None:
            writer.close()
    return ""


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError, asyncio.CancelledError):
        async with asyncio.timeout(4 * TIMEOUT):
            writer.write(await reader.readexactly(len(_SMALL)))
            writer.write(await reader.readexactly(_SIZE))
            await writer.drain()
            await reader.read(1)
    writer.close()
