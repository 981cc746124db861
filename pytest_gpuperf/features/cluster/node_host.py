"""The actor that hosts a node's ranks: what this machine's controller does for its own ranks, it does on the node.

It runs on one thread of Ray's. ``wake`` and ``clock`` may run on another one while a call such as ``post`` waits.
``waits_for`` and ``give_up_waiting`` run there too, while ``lease`` waits.
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from pytest_gpuperf.features.cluster.node_leases import NodeLeases
from pytest_gpuperf.features.cluster.wire import News, NodeFacts, Up, pack_endings
from pytest_gpuperf.hardware.device import Observation, Xid
from pytest_gpuperf.hardware.interfaces import find_interface
from pytest_gpuperf.hardware.machine import Machine, find_devices
from pytest_gpuperf.hardware.network import read_network
from pytest_gpuperf.hardware.site import Site, make_site
from pytest_gpuperf.hardware.watch import Watch
from pytest_gpuperf.ranks.alike import ALIKE, read_version
from pytest_gpuperf.ranks.channel import Parcel
from pytest_gpuperf.ranks.endings import Answered, Ending
from pytest_gpuperf.ranks.failures import LaunchError
from pytest_gpuperf.ranks.forkserver_client import ForkserverClient
from pytest_gpuperf.ranks.local_ranks import LocalRanks, await_news
from pytest_gpuperf.ranks.messages import Account
from pytest_gpuperf.ranks.node_ranks import Request
from pytest_gpuperf.ranks.spec import SOCKET_INTERFACES, PoolSpec
from pytest_gpuperf.run.nodes import Kept

VISIBLE = "CUDA_VISIBLE_DEVICES"
HOST_IDENTITY = "NCCL_HOSTID"
"""By this NCCL takes ranks for those of one machine, or of several."""
# What belongs to a machine rather than to a run: ranks have the node's own.
OF_THE_NODE = (
    *("HOME", "HOSTNAME", "LD_LIBRARY_PATH", "LD_PRELOAD", "LOGNAME", HOST_IDENTITY, "PATH", "PYTHONHOME"),
    *("PYTHONPATH", "SHELL", "TMPDIR", "USER", "VIRTUAL_ENV", "XDG_RUNTIME_DIR"),
)
_LIVE = 0.05  # seconds between looks at what ranks print, where somebody listens


RAY_LEAVES_CHILDREN = {"RAY_kill_child_processes_on_worker_exit": "0"}
"""Variables of an actor: Ray would kill the forkserver first, which then kills nothing that its ranks have started."""


class NodeHost:
    """Starts and holds the ranks that a node has, of any number of pools."""

    def __init__(
        self, preload: Sequence[str], preload_if_used: Mapping[str, str], variables: Mapping[str, str], gpus: str | None
    ) -> None:
        """Holds none.

        Args:
            preload: as ``ForkserverClient``.
            preload_if_used: as ``ForkserverClient``.
            variables: in the environment of the ranks, which replace the run's and the node's.
            gpus: UUIDs of the GPUs that this process may use; None for those that Ray gave it.
        """
        os.environ.update(variables)
        if gpus is not None:
            os.environ[VISIBLE] = gpus
        self._variables = dict(variables)
        self._kept: dict[int, Kept] = {}
        self._interface = find_interface(ray.util.get_node_ip_address())
        self._client = ForkserverClient(preload, preload_if_used)
        self._pools: dict[int, LocalRanks] = {}
        self._live: dict[int, bool] = {}
        self._watch: Watch | None = None
        self._leases: NodeLeases | None = None
        self._machine = Machine((), None, False)
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        threading.Thread(target=_leave_with, args=(os.getppid(),), daemon=True).start()

    def identity(self) -> str:
        """Ray's name of the node."""
        return str(ray.get_runtime_context().get_node_id())

    def facts(self, gpus: bool) -> NodeFacts:
        """The facts of the node.

        Args:
            gpus: whether the run uses GPUs.
        """
        machine = Machine.of(None if gpus else 0)
        told = replace(  # with devices that hold nothing open
            machine,
            devices=find_devices(),
            network=read_network(self._interface),
            memory_told=machine.memory_rate,
            host_told=machine.host_rate,
        )
        self._machine = told
        return NodeFacts(
            {"python": platform.python_version(), **{name: read_version(name) for name in ALIKE}}, told, fabric()
        )

    def site(self) -> Site:
        """The node, and how it is set up now."""
        own = make_site(self._machine)
        found = {} if self._interface is None else {"interface": self._interface}
        identity = os.environ.get(HOST_IDENTITY)
        return replace(own, setup={**own.setup, **found, **({HOST_IDENTITY: identity} if identity else {})})

    def has(self, package: str, elsewhere: Sequence[str]) -> bool:
        """Whether the node can import a package from other folders than these."""
        return can_import(package, elsewhere)

    def keep(self, number: int, make: Callable[..., Kept], arguments: Sequence[object]) -> Any:
        """Makes something that the node keeps until ``let_go`` or the end of the run, and returns its report.

        Args:
            number: of what is kept.
            make: makes it.
            arguments: of that.
        """
        kept = self._kept[number] = make(*arguments)
        return kept.told

    def let_go(self, number: int) -> None:
        """Undoes what ``keep`` made, if anything."""
        kept = self._kept.pop(number, None)
        if kept is not None:
            kept.close()

    def clock(self) -> float:
        """``time.monotonic`` of the node."""
        return time.monotonic()

    def warm_up(self) -> None:
        """Has what ranks are forked from begin to start."""
        _be_no_nicer()
        with contextlib.suppress(OSError):  # the first pool fails by the same, and says so
            self._client.start()

    def start(
        self, pool: int, spec: PoolSpec, part: range, environ: Mapping[str, str], live: bool, used: Iterable[str]
    ) -> Up:
        """Starts a part of a pool's ranks, and waits until they are up.

        Args:
            pool: its number.
            spec: of the pool.
            part: the ranks of this node.
            environ: of the pool's ranks, as the controller has it.
            live: whether what ranks print is to be heard as they print it.
            used: modules that ranks before them had imported.
        """
        self._client.note_used(used)
        _be_no_nicer()  # before the forkserver starts, whose ranks inherit it
        try:
            ranks = LocalRanks(self._client, spec, self._make_environ(spec, environ), part, live=live)
        except LaunchError as error:
            return Up(error=str(error))
        self._pools[pool], self._live[pool] = ranks, live
        return Up(ranks.pids, ranks.store_port)

    def post(self, pool: int, request: Request, task: Parcel) -> News:
        """Sends a request to a pool's ranks; waits as ``news``."""
        return self._collect_news(pool, self._pools[pool].post(request, task))

    def news(self, pool: int) -> News:
        """Waits until all ranks of a pool ended the request or one failed, one printed, or ``wake`` was called."""
        return self._collect_news(pool, {})

    def wake(self) -> None:
        """Has ``post`` or ``news`` return what there is."""
        os.eventfd_write(self._wakeup, 1)

    def give_up(self, pool: int, ranks: Sequence[int]) -> dict[int, Ending]:
        """The stacks of ranks that did not end the request."""
        return dict(self._pools[pool].give_up(ranks)())

    def ask(self, pool: int, ranks: Sequence[int], whole: bool) -> dict[int, Account]:
        """The accounts of those ranks that answer in time."""
        return self._pools[pool].ask(ranks, whole=whole)()

    def end(self, pool: int, ask_first: bool) -> News:
        """Ends the ranks of a pool, if there are any; returns what they printed last.

        Args:
            pool: its number.
            ask_first: whether they may leave by themselves.
        """
        ranks = self._pools.pop(pool, None)
        if ranks is None:
            return News()
        if ask_first:
            ranks.close()
        else:
            ranks.kill()
        return self._read_printed(ranks, self._live.pop(pool))

    def watch(self, gpus: Sequence[str]) -> None:
        """Begins to observe GPUs; returns once each was looked at."""
        self._watch = Watch(gpus, find_devices())
        self._watch.__enter__()

    def unwatch(self) -> tuple[tuple[Observation, ...], tuple[Xid, ...]]:
        """What was observed since, and which errors the driver reported."""
        watch, self._watch = self._watch, None
        if watch is None:
            return (), ()
        watch.__exit__(None, None, None)
        return watch.seen, watch.xids

    def lease(self, folder: str, gpus: Sequence[str], holder: str, alone: bool, timeout: float) -> tuple[str, ...]:
        """Leases GPUs of the node for a test, as ``NodeLeases.take``."""
        if self._leases is None:
            self._leases = NodeLeases(Path(folder), self._machine)
        return self._leases.take(gpus, holder, alone=alone, timeout=timeout)

    def waits_for(self) -> str:
        """Who keeps ``lease`` waiting, in words; empty if there is nothing new to say."""
        return "" if self._leases is None else self._leases.waits_for()

    def give_up_waiting(self) -> None:
        """Ends the waiting of ``lease``."""
        if self._leases is not None:
            self._leases.give_up()

    def release(self, staying: Sequence[str], await_memory: bool) -> tuple[str, ...]:
        """Lets go of what is leased, as ``NodeLeases.release``."""
        return () if self._leases is None else self._leases.release(staying, await_memory=await_memory)

    def is_wanted_alone(self) -> bool:
        """Whether another process waits to be alone on a GPU with idle ranks of the run."""
        return self._leases is not None and self._leases.is_wanted_alone()

    def close(self) -> None:
        """Ends all ranks, and what they are forked from; then lets go of what is leased."""
        for pool in list(self._pools):
            self.end(pool, False)
        self._client.close()
        for number in list(self._kept):
            self.let_go(number)
        if self._leases is not None:
            self._leases.close()

    def _collect_news(self, pool: int, endings: dict[int, Ending]) -> News:
        ranks, live = self._pools[pool], self._live[pool]
        woken = False
        printed = News()
        while (
            ranks.waits and not (woken or printed.heard) and all(isinstance(one, Answered) for one in endings.values())
        ):
            ready = await_news(ranks, [self._wakeup], _LIVE if live else None)
            if self._wakeup in ready:
                woken = bool(os.eventfd_read(self._wakeup))
            endings.update(ranks.news([one for one in ready if one != self._wakeup]))
            printed = self._read_printed(ranks, live) if live else printed
        if not live:
            printed = self._read_printed(ranks, live)
        printed.endings = pack_endings(endings)
        return printed

    @staticmethod
    def _read_printed(ranks: LocalRanks, live: bool) -> News:
        return News(heard=list(ranks.listen())) if live else News(output=ranks.output())

    def _make_environ(self, spec: PoolSpec, environ: Mapping[str, str]) -> dict[str, str]:
        run = {name: value for name, value in environ.items() if name not in OF_THE_NODE}
        own = {name: value for name, value in os.environ.items() if name in OF_THE_NODE}
        interface = {} if self._interface is None else dict.fromkeys(SOCKET_INTERFACES, self._interface)
        # What a test sets comes before what the node has.
        return {**interface, **run, **own, **self._variables, **dict(spec.environ)}


def _be_no_nicer() -> None:
    # Ray gives its workers a niceness of 15, so whatever else runs on the node would come before ranks that measure.
    with contextlib.suppress(PermissionError):  # only root may; others start Ray with RAY_worker_niceness=0
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, int(thread), 0)


def can_import(package: str, elsewhere: Sequence[str]) -> bool:
    """Whether a package can be imported here, if some folders do not count.

    Args:
        package: its name.
        elsewhere: folders of ``sys.path`` that do not count.
    """
    before = sys.path[:]
    sys.path[:] = [folder for folder in before if folder not in elsewhere]
    try:
        return any(finder.find_spec(package, None) is not None for finder in sys.meta_path)
    finally:
        sys.path[:] = before


def fabric(root: Path = Path("/sys/class/infiniband")) -> str:
    """Label of the network between nodes: of the adapters for RDMA, if there are any."""
    layers = {_read_text(path) for path in root.glob("*/ports/*/link_layer")}
    if "InfiniBand" in layers:
        return "ib"
    return "roce" if "Ethernet" in layers else "tcp"


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _leave_with(raylet: int) -> None:
    # Ray's own processes outlive a raylet that was killed for a minute, and so would the ranks.
    try:
        process = os.pidfd_open(raylet)
    except OSError:  # it has ended
        os._exit(1)
    select.select([process], [], [])
    os._exit(1)
