"""The other nodes of a job, as the first one has them: who has come, what each says, and who is gone."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pytest_gpuperf.features.everywhere.channel import (
    LIMIT,
    Channel,
    ChannelError,
    Message,
    compute_proof,
    is_same_proof,
)
from pytest_gpuperf.features.everywhere.facts import NodeFacts
from pytest_gpuperf.features.everywhere.secret import Secret, SecretError
from pytest_gpuperf.features.everywhere.settings import Settings

_GREETING_TIMEOUT = 60.0  # seconds; a node gathers its facts first
_FACTS_TIMEOUT = 10.0  # seconds for facts that are gathered already
_SHOWN = 300  # characters of what an unknown process says


@dataclass(eq=False)
class Peer:
    """Another node: the process that leads it."""

    channel: Channel
    facts: NodeFacts
    rank: int | None
    reached: str
    """The address by which it has reached the first node."""
    clock: float = 0.0
    name: str = ""
    gone: str = ""
    """How the node was lost; empty while it is there."""
    messages: asyncio.Queue[Message | None] = field(default_factory=asyncio.Queue)
    """What it says; None once it is gone."""

    async def answer(self, timeout: float) -> Message:
        """Return its next message.

        Raises:
            ChannelError: it is gone, or says nothing in time.
        """
        try:
            message = await asyncio.wait_for(self.messages.get(), timeout)
        except TimeoutError:
            raise ChannelError(f"no answer within {timeout:g} s") from None
        if message is None:
            self.messages.put_nowait(None)
            raise ChannelError(self.gone)
        return message


class Peers:
    """Listens for the other processes of the job."""

    def __init__(self, settings: Settings, secret: Secret, changed: Callable[[Peer], None]) -> None:
        """Listens to nobody yet.

        Args:
            settings: of the run.
            secret: of the job.
            changed: called when a node is gone, or asks for the end of the run.
        """
        self._settings = settings
        self._secret = secret
        self._changed = changed
        self.nodes: list[Peer] = []
        """The nodes that have come, in this order."""
        self.refused: list[str] = []
        """Who came and could not be let in, in words."""
        self._followers: list[Channel] = []
        self._came = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.cancelled_by: int | None = None
        """Number of the signal by which a node was asked to end; None while none was."""

    async def listen(self) -> int:
        """Listens at the first free port of the job; return it.

        Raises:
            OSError: none is free.
        """
        for port in self._settings.ports:
            try:
                self._server = await asyncio.start_server(self._meet, host=None, port=port, limit=LIMIT)
            except OSError as error:
                last = error
                continue
            return port
        raise last

    async def complete(self, timeout: float) -> bool:
        """Waits until all nodes have come, or a time has passed; return whether all have."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while len(self.nodes) < self._settings.place.nodes - 1:
                    self._came.clear()
                    await self._came.wait()
        return len(self.nodes) >= self._settings.place.nodes - 1

    async def end(self, status: int, why: str, timeout: float) -> list[Peer]:
        """Ends the run on all nodes; return those that have not confirmed it.

        Args:
            status: the exit status of all.
            why: why the run could not be, for nodes to print; empty if the command has ended.
            timeout: seconds for nodes to confirm.
        """
        there = [peer for peer in self.nodes if not peer.gone]
        for channel in [*self._followers, *(peer.channel for peer in there)]:
            await channel.send("end", status=status, why=why)

        async def is_confirmed(peer: Peer) -> bool:
            try:
                async with asyncio.timeout(timeout):
                    while (await peer.answer(timeout))["is"] != "ended":
                        pass
            except (ChannelError, TimeoutError):
                return False
            return True

        answers = await asyncio.gather(*(is_confirmed(peer) for peer in there))
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        for channel in [*self._followers, *(peer.channel for peer in self.nodes)]:
            await channel.close()
        return [peer for peer, ended in zip(there, answers, strict=True) if not ended]

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(asyncio.CancelledError):  # of which Python 3.11 would print a traceback
            await self._serve(reader, writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = Channel(reader, writer, _GREETING_TIMEOUT)
        try:
            hello = await self._receive_hello(channel)
        except (ChannelError, SecretError, KeyError) as error:
            self._refuse(f"{channel.peer_address}: {error}")
            hello = None
        if hello is None:
            await channel.close()
            return
        channel.begin_to_beat(self._settings.silence)
        if hello["leads"]:
            await self._lead(channel, hello)
        else:
            self._followers.append(channel)
            with contextlib.suppress(ChannelError):
                while True:
                    await channel.receive()

    async def _receive_hello(self, channel: Channel) -> Message | None:
        """Return what a process of this job says of itself; None if it is none."""
        greeting = {
            "source": self._secret.kind,
            "credential": await asyncio.to_thread(self._secret.make_credential),
            "job": self._settings.place.digest.hex(),
            "nonce": secrets.token_hex(16),
        }
        await channel.send("greeting", **greeting)
        answer = await channel.receive()
        if answer["is"] == "wrong":  # another job's process, which looks at several ports
            return None
        if answer["is"] != "hello":
            raise ChannelError(str(answer.get("why", "no process of this command"))[:_SHOWN])
        nonce = str(answer.get("nonce"))
        if not is_same_proof(answer.get("proof"), compute_proof(self._secret.token, "node", greeting, nonce)):
            host = str(answer.get("host", ""))[:_SHOWN]
            await channel.send("refused", why="another token")
            raise ChannelError(f"host {host} has another token")
        if answer["leads"] and len(self.nodes) >= self._settings.place.nodes - 1:
            await channel.send("refused", why=f"all {self._settings.place.nodes} nodes of this job have come")
            raise ChannelError(f"host {answer['host']} has come, and all nodes were there")
        await channel.send("welcome", proof=compute_proof(self._secret.token, "head", greeting, nonce))
        return answer

    async def _lead(self, channel: Channel, hello: dict[str, Any]) -> None:
        try:
            told = await asyncio.wait_for(channel.receive(), _FACTS_TIMEOUT)
        except (ChannelError, TimeoutError):
            self._refuse(
                f"host {hello['host']}: its small packets arrive, and larger ones do not within {_FACTS_TIMEOUT:g} s: "
                "compare the packet size (MTU) of its interface with that of the network between"
            )
            await channel.close()
            return
        if len(self.nodes) >= self._settings.place.nodes - 1:
            await channel.close()
            return
        facts = NodeFacts.from_json(told["facts"])
        peer = Peer(channel, facts, hello["rank"], channel.own_address)
        self.nodes.append(peer)
        self._came.set()
        try:
            while True:
                message = await channel.receive()
                if message["is"] == "cancelled":
                    self.cancelled_by = int(message["by"])
                    self._changed(peer)
                else:
                    peer.messages.put_nowait(message)
        except ChannelError as error:
            peer.gone = str(error)
        finally:
            peer.messages.put_nowait(None)
        self._changed(peer)

    def _refuse(self, text: str) -> None:
        if text not in self.refused:
            self.refused.append(text)
