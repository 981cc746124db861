"""Messages between the first node of a job and the others: lines of JSON, after both sides have proved the secret.

A side that has been silent for some time is gone: each sends a beat when it has nothing to say.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

GREETING = "pytest-gpuperf everywhere 1"
LIMIT = 2**20  # bytes of a line
BEAT = 1.0  # seconds between beats
Message = dict[str, Any]


class ChannelError(Exception):
    """The other side is gone, or is not what it should be; the message says how."""


class Channel:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silence: float) -> None:
        """Sends nothing yet.

        Args:
            reader: what arrives; its limit is ``LIMIT``.
            writer: what leaves.
            silence: seconds without a message after which the other side is gone.
        """
        self._reader = reader
        self._writer = writer
        self._silence = silence
        self._beating: asyncio.Task[None] | None = None

    @property
    def own_address(self) -> str:
        """The address of this side."""
        return str(self._writer.get_extra_info("sockname")[0])

    @property
    def peer_address(self) -> str:
        """The address of the other side, as this side sees it."""
        return str(self._writer.get_extra_info("peername")[0])

    def begin_to_beat(self, silence: float) -> None:
        """Sends a beat every second from now on, and expects the other side to do so.

        Args:
            silence: seconds without a message after which the other side is gone.
        """
        self._silence = silence
        self._beating = asyncio.create_task(self._beat())

    async def send(self, kind: str, **content: Any) -> None:
        """Sends a message; a side that is gone is noticed by ``receive``."""
        if self._writer.is_closing():
            return  # asyncio would print a line for each message
        with contextlib.suppress(OSError):
            self._writer.write(json.dumps({"is": kind, **content}).encode() + b"\n")
            await self._writer.drain()

    async def receive(self) -> Message:
        """Return the next message that is no beat.

        Raises:
            ChannelError: the other side is silent or gone, or sends something else.
        """
        while (message := await self._read_message())["is"] == "beat":
            pass
        return message

    async def close(self) -> None:
        """Closes the connection."""
        if self._beating is not None:
            self._beating.cancel()
        with contextlib.suppress(OSError):
            self._writer.close()
            await asyncio.wait_for(self._writer.wait_closed(), 1.0)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            await self.send("beat")

    async def _read_message(self) -> Message:
        try:
            line = await asyncio.wait_for(self._reader.readline(), self._silence)
        except TimeoutError:
            raise ChannelError(f"silent for {self._silence:g} s") from None
        except (OSError, ValueError) as error:
            raise ChannelError(f"connection broken: {error}") from None
        if not line.endswith(b"\n"):
            raise ChannelError("connection closed")
        try:
            message = json.loads(line)
        except ValueError:
            raise ChannelError("no message of this command") from None
        if not isinstance(message, dict) or not isinstance(message.get("is"), str):
            raise ChannelError("no message of this command")
        return message


def compute_proof(token: str, side: str, greeting: Mapping[str, Any], answer: str) -> str:
    """Return what only a side that has the token can compute.

    Args:
        token: the secret.
        side: ``head`` or ``node``, so that neither can return what it was sent.
        greeting: the head's first message, with its nonce.
        answer: the node's nonce.
    """
    content = json.dumps([GREETING, side, greeting["job"], greeting["nonce"], answer]).encode()
    return hmac.new(token.encode(), content, hashlib.sha256).hexdigest()


def is_same_proof(one: object, other: str) -> bool:
    """Whether both proofs are the same; takes as long for any difference."""
    return isinstance(one, str) and hmac.compare_digest(one.encode(), other.encode())
