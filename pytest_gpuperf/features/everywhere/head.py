"""The first node: waits for the others, looks whether all fit, starts Ray, runs the command, and ends everything."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from pytest_gpuperf.features.everywhere import ray_node
from pytest_gpuperf.features.everywhere.cancelling import Cancelling, compute_status
from pytest_gpuperf.features.everywhere.channel import ChannelError
from pytest_gpuperf.features.everywhere.custody import Custody, CustodyError, choose_temp_folder
from pytest_gpuperf.features.everywhere.facts import NodeFacts, gather, read_clock, resolve
from pytest_gpuperf.features.everywhere.peers import Peer, Peers
from pytest_gpuperf.features.everywhere.preflight import Node, Unreached, format_summary, list_findings
from pytest_gpuperf.features.everywhere.probing import TIMEOUT, Answering, Target, choose_peers, probe
from pytest_gpuperf.features.everywhere.secret import OPEN, Secret, SecretError, choose_secret
from pytest_gpuperf.features.everywhere.settings import UNAVAILABLE, Settings, say
from pytest_gpuperf.report.units import format_count

_ANSWER = 30.0  # seconds for a node to answer what takes it a moment
_RAY_TIMEOUT = 180.0  # seconds for Ray to start on a node whose disk is cold
_END_TIMEOUT = 25.0  # seconds for a node to end its processes
_CLOCKS = 3  # answers, of which the one that came soonest counts


class RunError(Exception):
    """The command cannot run; the message says why, and on which node."""


async def lead(settings: Settings, environ: Mapping[str, str]) -> int:
    """Runs the command on the nodes of a job; return the exit status.

    Args:
        settings: of the run.
        environ: the environment of this process.
    """
    try:
        secret = choose_secret(settings.place, environ, settings.home)
    except SecretError as error:
        say(f"error: {error}")
        return UNAVAILABLE
    return await _Head(settings, environ, secret).run()


class _Head:
    def __init__(self, settings: Settings, environ: Mapping[str, str], secret: Secret) -> None:
        self._settings = settings
        self._environ = environ
        self._secret = secret
        self._peers = Peers(settings, secret, self._note_change)
        self._cancelling = Cancelling()
        self._custody: Custody | None = None
        self._runs = False
        self._ending = False

    async def run(self) -> int:
        """Does all of it."""
        course = asyncio.create_task(self._run_course())
        cancelled = asyncio.create_task(self._cancelling.wait())
        await asyncio.wait([course, cancelled], return_when=asyncio.FIRST_COMPLETED)
        why = ""
        if not course.done():
            if self._runs and self._custody is not None:
                self._custody.signal("command", cancelled.result())
                await asyncio.wait([course], timeout=self._settings.grace)
            why = f"the run was cancelled ({cancelled.result().name})"
            say(why)
        cancelled.cancel()
        status = UNAVAILABLE
        if course.done():
            try:
                status = course.result()
            except (RunError, CustodyError) as error:
                why = f"error: {error}"
                say(why)
        else:
            course.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await course
        if self._cancelling.by is not None and status in (0, UNAVAILABLE):
            status = compute_status(self._cancelling.by)
        await self._end(status, why)
        return status

    async def _end(self, status: int, why: str) -> None:
        self._ending = True
        closing = [] if self._custody is None else [asyncio.create_task(self._custody.close())]
        for peer in await self._peers.end(status, why, _END_TIMEOUT):
            say(f"warning: node {peer.name or peer.facts.host} has not confirmed that its processes have ended")
        for task in closing:
            if not await task:
                say(f"warning: node {socket.gethostname()}: processes of the run could not be ended")

    async def _run_course(self) -> int:
        """Return the exit status of the command.

        Raises:
            RunError: it cannot run.
            CustodyError: the keeper of this node has ended.
        """
        nodes = await self._gather()
        if self._secret.kind == OPEN:
            say("warning: RAY_AUTH_MODE=disabled: whoever reaches the ports of Ray can run code on the nodes")
        await self._compare_clocks()
        port = ray_node.find_free_port()
        unreached = await self._probe(nodes, port)
        clocks = [0.0, *(peer.clock for peer in self._peers.nodes)]
        names = await asyncio.to_thread(lambda: [resolve(node.facts.host) for node in nodes])
        nodes = [replace(node, clock=clocks[k], resolves=names[k]) for k, node in enumerate(nodes)]
        found = list_findings(nodes, unreached)
        for one in found:
            say(str(one))
        if blocking := sum(one.blocks for one in found):
            raise RunError(f"the nodes cannot run the command: {format_count(blocking, 'error')} above")
        say(format_summary(nodes, self._settings.place.launcher))
        address = await self._start_ray(nodes, port)
        return await self._run_command(address)

    async def _gather(self) -> list[Node]:
        """Return the nodes once all are here."""
        facts = asyncio.create_task(asyncio.to_thread(gather, "127.0.0.1", self._environ))
        try:
            port = await self._peers.listen()  # also on the only node, whose other processes wait for the status
        except OSError as error:
            ports = ", ".join(map(str, self._settings.ports))
            raise RunError(f"this node cannot listen at port {ports}: {error.strerror}: give another --port") from None
        if not await self._peers.complete(self._settings.wait):
            raise RunError(self._describe_missing(port))
        own = await facts
        if reached := Counter(peer.reached for peer in self._peers.nodes):
            if len(reached) > 1:
                say(f"warning: nodes reach this one at several addresses: {', '.join(reached)}; Ray uses the first")
            own = await asyncio.to_thread(gather, reached.most_common(1)[0][0], self._environ)
        every: list[tuple[NodeFacts, int | None]] = [(own, 0), *((one.facts, one.rank) for one in self._peers.nodes)]
        hosts = Counter(facts.host for facts, _ in every)
        nodes = []
        for index, (told, rank) in enumerate(every):
            number = index if rank is None else rank
            nodes.append(Node(told.host if hosts[told.host] == 1 else f"{told.host}-{number}", told))
        for peer, node in zip(self._peers.nodes, nodes[1:], strict=True):
            peer.name = node.name
        return nodes

    def _describe_missing(self, port: int) -> str:
        place, came = self._settings.place, self._peers.nodes
        hosts = ", ".join([socket.gethostname(), *(peer.facts.host for peer in came)])
        ranks = {0, *(peer.rank for peer in came)}
        missing = f"{place.nodes - 1 - len(came)} of {place.nodes} nodes"
        if None not in ranks:
            lacking = [rank for rank in range(place.nodes) if rank not in ranks]
            named = [place.names[rank] if rank < len(place.names) else f"number {rank}" for rank in lacking]
            missing = f"node {', '.join(named)}"
        refused = "".join(f"; refused: {one}" for one in self._peers.refused)
        return (
            f"{missing} did not come within {self._settings.wait:g} s; came: {hosts}{refused}. Look at the output of "
            f"{'those' if place.nodes - len(came) > 2 else 'that'}, and whether it reaches "
            f"{socket.gethostname()} at port {port}; --wait sets the time"
        )

    async def _compare_clocks(self) -> None:
        async def compare(peer: Peer) -> None:
            seen = []
            for _ in range(_CLOCKS):
                began = read_clock()
                await peer.channel.send("clock")
                there = float((await peer.answer(_ANSWER))["time"])
                ended = read_clock()
                seen.append((ended - began, there - (began + ended) / 2))
            peer.clock = min(seen)[1]

        await self._do_on_all(compare)

    async def _probe(self, nodes: Sequence[Node], port: int) -> list[Unreached]:
        """Return the connections between nodes that fail. The first node is tried at the port that Ray will have."""
        if len(nodes) == 1:
            return []
        answering = await Answering.begin(port)
        ports = {}

        async def listens(peer: Peer) -> None:
            await peer.channel.send("listen")
            ports[peer.name] = int((await peer.answer(_ANSWER))["port"])

        await self._do_on_all(listens)
        targets = [Target(nodes[0].name, nodes[0].facts.address, port)]
        targets += [Target(node.name, node.facts.address, ports[node.name]) for node in nodes[1:]]
        by_name = {target.name: target for target in targets}
        failed: list[Unreached] = []

        def note(origin: str, name: str, why: str) -> None:
            target = by_name[name]
            failed.append(Unreached(origin, name, target.address, target.port, why))

        async def tries(peer: Peer) -> None:
            index = next(k for k, target in enumerate(targets) if target.name == peer.name)
            wanted = [[one.name, one.address, one.port] for one in choose_peers(index, targets)]
            await peer.channel.send("probe", targets=wanted)
            for name, why in (await peer.answer(_ANSWER + TIMEOUT))["failed"]:
                note(peer.name, name, why)

        trying = asyncio.create_task(probe(choose_peers(0, targets)))
        await self._do_on_all(tries)
        for target, why in await trying:
            note(nodes[0].name, target.name, why)
        answering.close()
        return failed

    async def _start_ray(self, nodes: Sequence[Node], port: int) -> str:
        """Return host and port of Ray's head, once all nodes have joined."""
        own = nodes[0].facts
        address = f"{own.address}:{port}"
        self._custody = await Custody.begin(choose_temp_folder(self._environ))
        output = self._custody.folder / "start.log"
        argv = ray_node.make_head_command(own.address, port, nodes[0].name, own.shared_memory)
        environ = ray_node.make_environment(self._environ, self._secret, self._custody.folder)
        try:
            async with asyncio.timeout(_RAY_TIMEOUT):
                status = await self._custody.run("ray", argv, environ, output)
        except TimeoutError:
            status = None
        if status != 0:
            how = f"did not end within {_RAY_TIMEOUT:g} s" if status is None else f"has ended with {status}"
            printed = ray_node.read_last_lines(output)
            raise RunError(
                f"node {nodes[0].name}: Ray did not start: `{ray_node.show_command(argv)}` {how}:\n{printed}"
            )

        folder = str(self._custody.folder)

        async def joins(peer: Peer) -> None:
            await peer.channel.send("ray", head=address, name=peer.name, folder=folder)
            if (answer := await peer.answer(_RAY_TIMEOUT))["is"] != "up":
                raise ChannelError(f"Ray did not start: {answer['why']}")

        await self._do_on_all(joins)
        return address

    async def _run_command(self, address: str) -> int:
        assert self._custody is not None
        environ = ray_node.make_command_environment(self._environ, self._secret, address, self._custody.folder)
        self._runs = True
        return await self._custody.run("command", self._settings.command, environ, None)

    async def _do_on_all(self, task: Callable[[Peer], Awaitable[None]]) -> None:
        """Does a task with all other nodes side by side.

        Raises:
            RunError: a node is gone, or has failed.
        """

        async def name_node(peer: Peer) -> None:
            try:
                await task(peer)
            except ChannelError as error:
                raise RunError(f"node {peer.name}: {error}") from None

        results = await asyncio.gather(*(name_node(peer) for peer in self._peers.nodes), return_exceptions=True)
        errors = [one for one in results if isinstance(one, BaseException)]
        if len(errors) > 1 and all(isinstance(one, RunError) for one in errors):
            raise RunError("; ".join(map(str, errors)))
        for error in errors:
            raise error

    def _note_change(self, peer: Peer) -> None:
        if self._ending:
            return
        if self._peers.cancelled_by is not None and self._cancelling.by is None:
            say(f"node {peer.name or peer.facts.host} was asked to end")
            self._cancelling.cancel(signal.Signals(self._peers.cancelled_by))
        elif peer.gone and self._runs:  # before, whoever waits for the node says so
            say(f"warning: node {peer.name or peer.facts.host} is lost: {peer.gone}; the command goes on without it")
