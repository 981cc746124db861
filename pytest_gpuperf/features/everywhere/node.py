"""A node that is not the first: finds the head, does what it asks, and ends with its exit status."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_gpuperf.features.everywhere import ray_node
from pytest_gpuperf.features.everywhere.cancelling import Cancelling, compute_status
from pytest_gpuperf.features.everywhere.channel import (
    LIMIT,
    Channel,
    ChannelError,
    Message,
    compute_proof,
    is_same_proof,
)
from pytest_gpuperf.features.everywhere.custody import Custody, CustodyError, choose_temp_folder
from pytest_gpuperf.features.everywhere.facts import gather, read_clock
from pytest_gpuperf.features.everywhere.probing import Answering, Target, probe
from pytest_gpuperf.features.everywhere.secret import Secret, SecretError, read_shared_secret
from pytest_gpuperf.features.everywhere.settings import UNAVAILABLE, Settings, say

_CONNECT_TIMEOUT = 3.0  # seconds for one of the head's ports
_AGAIN = 0.3  # seconds between two looks for the head


@dataclass(frozen=True, slots=True)
class Joined:
    """The connection to the head, after both sides have proved the secret."""

    channel: Channel
    secret: Secret
    head: str
    """The head's address, as this node reaches it."""
    shared_memory: int


class NotThisJobError(Exception):
    """The head of another job listens there; the message says why this node is not one of it, if that is known."""


async def follow(settings: Settings, environ: Mapping[str, str]) -> int:
    """Takes part in the run until it ends; return the exit status.

    Args:
        settings: of the run.
        environ: the environment of this process.
    """
    cancelling = Cancelling()
    cancelled = asyncio.create_task(cancelling.wait())
    joining = asyncio.create_task(_join(settings, environ))
    await asyncio.wait([joining, cancelled], return_when=asyncio.FIRST_COMPLETED)
    if not joining.done():
        joining.cancel()
        return compute_status(cancelled.result())
    try:
        joined = joining.result()
    except (ChannelError, SecretError) as error:
        say(f"error: host {socket.gethostname()}: {error}")
        return UNAVAILABLE
    served = asyncio.create_task(_Node(settings, environ, joined).serve())
    await asyncio.wait([served, cancelled], return_when=asyncio.FIRST_COMPLETED)
    if not served.done():  # the head lets the command end first, and says when
        await joined.channel.send("cancelled", by=int(cancelled.result()))
        await asyncio.wait([served], timeout=settings.grace + 2)
        if not served.done():
            served.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await served
            return compute_status(cancelled.result())
    cancelled.cancel()
    return served.result()


async def _join(settings: Settings, environ: Mapping[str, str]) -> Joined:
    """Return the connection to the head.

    Raises:
        ChannelError: there is none in time.
        SecretError: this node lacks the secret of the job.
    """
    why = "nothing listens there"
    try:
        async with asyncio.timeout(settings.wait):
            while True:
                for host in settings.place.heads:
                    for port in settings.ports:
                        try:
                            return await _greet(host, port, settings, environ)
                        except NotThisJobError as error:
                            why = str(error) or why
                        except ConnectionRefusedError:
                            continue
                        except (ChannelError, OSError) as error:
                            why = f"{host} port {port}: {getattr(error, 'strerror', None) or error}"
                await asyncio.sleep(_AGAIN)
    except TimeoutError:
        ports = ", ".join(map(str, settings.ports))
        raise ChannelError(
            f"cannot join the first node ({', '.join(settings.place.heads)}) at ports {ports} within "
            f"{settings.wait:g} s ({why}). Look whether it started this command, whether its name resolves here, "
            "and whether a firewall is between, or give --port"
        ) from None


async def _greet(host: str, port: int, settings: Settings, environ: Mapping[str, str]) -> Joined:
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            reader, writer = await asyncio.open_connection(host, port, limit=LIMIT)
    except TimeoutError:
        raise ChannelError(f"no connection within {_CONNECT_TIMEOUT:g} s, as behind a firewall") from None
    channel = Channel(reader, writer, max(settings.silence, 10.0))
    try:
        joined = await _welcome(channel, settings, environ)
    except BaseException:
        await channel.close()
        raise
    channel.begin_to_beat(settings.silence)
    return joined


async def _welcome(channel: Channel, settings: Settings, environ: Mapping[str, str]) -> Joined:
    place = settings.place
    greeting = await channel.receive()
    if greeting["is"] != "greeting":
        raise NotThisJobError
    if greeting["job"] != place.digest.hex():
        await channel.send("wrong")
        raise NotThisJobError
    host = socket.gethostname()
    try:
        secret = await asyncio.to_thread(
            read_shared_secret, greeting["source"], greeting["credential"], place, environ, settings.home
        )
    except SecretError as error:
        await channel.send("lacks", why=f"host {host}: {error}")
        raise
    facts = await asyncio.to_thread(gather, channel.own_address, environ)
    nonce = secrets.token_hex(16)
    await channel.send(
        "hello",
        host=host,
        nonce=nonce,
        proof=compute_proof(secret.token, "node", greeting, nonce),
        leads=place.leads,
        rank=place.rank,
    )
    answer = await channel.receive()
    if answer["is"] == "refused":
        refused = f"the first node, at {channel.peer_address}, refuses this one: {answer['why']}"
        if place.launcher == "--head":  # it may be that of another job, and this one's at the next port
            raise NotThisJobError(refused)
        raise SecretError(refused)
    if not is_same_proof(answer.get("proof"), compute_proof(secret.token, "head", greeting, nonce)):
        raise SecretError(f"the process at {channel.peer_address} does not have the secret of this job")
    await channel.send("facts", facts=facts.make_json())  # larger than a packet, unlike all before
    return Joined(channel, secret, channel.peer_address, facts.shared_memory)


class _Node:
    """What a node does for the head."""

    def __init__(self, settings: Settings, environ: Mapping[str, str], joined: Joined) -> None:
        self._settings = settings
        self._environ = environ
        self._joined = joined
        self._custody: Custody | None = None
        self._answering: Answering | None = None
        self._starting: asyncio.Task[None] | None = None
        self._broken = asyncio.Event()
        """Whether the keeper of this node's processes has ended before the run."""

    async def serve(self) -> int:
        """Does what the head asks; return the exit status that it gives."""
        channel, host = self._joined.channel, socket.gethostname()
        try:
            while True:
                message = await self._receive_message()
                if message["is"] == "end":
                    break
                await self._do(message)
        except ChannelError as error:
            say(f"error: host {host}: the first node is gone ({error}), so this node ends its processes")
            await self._end()
            return UNAVAILABLE
        except CustodyError as error:
            say(f"error: host {host}: {error}, so this node leaves the run")
            await self._end()
            return UNAVAILABLE
        except asyncio.CancelledError:
            await self._end()
            raise
        empty = await self._end()
        await channel.send("ended", empty=empty)
        await channel.close()
        if message["why"] and self._settings.place.leads:
            say(message["why"])
        return int(message["status"])

    async def _receive_message(self) -> Message:
        """Return what the head asks next.

        Raises:
            ChannelError: the head is gone.
            CustodyError: the keeper of this node's processes has ended.
        """
        receiving = asyncio.create_task(self._joined.channel.receive())
        broken = asyncio.create_task(self._broken.wait())
        try:
            await asyncio.wait([receiving, broken], return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                return receiving.result()
            raise CustodyError("the keeper of its processes has ended")
        finally:
            receiving.cancel()
            broken.cancel()

    async def _do(self, message: Message) -> None:
        channel = self._joined.channel
        match message["is"]:
            case "clock":
                await channel.send("clock", time=read_clock())
            case "listen":
                self._answering = await Answering.begin()
                await channel.send("listens", port=self._answering.port)
            case "probe":
                failed = await probe([Target(*one) for one in message["targets"]])
                await channel.send("probed", failed=[[target.name, why] for target, why in failed])
            case "ray":  # the head must be heard meanwhile
                self._starting = asyncio.create_task(self._start(message["head"], message["name"], message["folder"]))

    async def _start(self, head: str, name: str, folder: str) -> None:
        channel, secret = self._joined.channel, self._joined.secret
        if self._answering is not None:
            self._answering.close()
        try:
            self._custody = await Custody.begin(choose_temp_folder(self._environ))
            self._custody.remove(folder)  # Ray uses the head's folder on all nodes
            output = self._custody.folder / "start.log"
            argv = ray_node.make_node_command(head, channel.own_address, name, self._joined.shared_memory)
            environ = ray_node.make_environment(self._environ, secret, self._custody.folder)
            status = await self._custody.run("ray", argv, environ, output)
        except (CustodyError, OSError) as error:
            await channel.send("failed", why=str(error))
            return
        if status:
            text = f"`{ray_node.show_command(argv)}` has ended with {status}:\n{ray_node.read_last_lines(output)}"
            await channel.send("failed", why=text)
            return
        await channel.send("up")
        await self._custody.await_loss()
        self._broken.set()

    async def _end(self) -> bool:
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
        if self._answering is not None:
            self._answering.close()
        return True if self._custody is None else await self._custody.close()
