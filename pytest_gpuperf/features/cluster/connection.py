"""The controller's connection to Ray: made quietly, and undone."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import ray

from pytest_gpuperf.features.cluster.failures import ClusterError
from pytest_gpuperf.features.cluster.ray_internals import answers_requests, leave_errors_to_python, print_nothing
from pytest_gpuperf.features.cluster.reservation import RayNode

_ADDRESS = re.compile(r"(?P<host>[^\s:/]+):(?P<port>\d+)")
_LISTENER_TIMEOUT = 10.0  # seconds
_DAEMON_OUTLIVES_HEAD = "RAY_gcs_rpc_server_reconnect_timeout_s"
_FOREVER = 10**8  # seconds; Ray ends a process whose head is gone for longer, and with it the report of the run
_SOCKET_OF_DAEMON = "/sockets/raylet"  # in the path of the socket by which a process reaches the daemon of its node


@dataclass(slots=True)
class Connection:
    """The connection to a running cluster. A process has one."""

    head: str
    """``host:port`` of the cluster's head."""
    daemon: str = ""
    """Path of the socket of Ray's daemon on this node; empty if it is not known."""
    _nodes: dict[str, RayNode] = field(default_factory=dict)
    _headless: str = ""

    @classmethod
    def to(cls, address: str) -> Self:
        """Connects this process, which runs on a node of the cluster.

        Args:
            address: ``host:port`` of the head, or ``auto`` for that of this machine.

        Raises:
            ClusterError: there is no cluster, or this process cannot be part of it.
        """
        if address != "auto" and not _ADDRESS.fullmatch(address):
            raise ClusterError(f"--cluster takes the head's host:port or 'auto', got {address!r}")
        if address != "auto":
            _require_listener(address)
        if ray.is_initialized():
            raise ClusterError("--cluster: this process is connected to Ray already, and can be to one cluster alone")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # For this process alone: Ray's daemons have their own, and so does a cluster that a test starts.
        before, os.environ[_DAEMON_OUTLIVES_HEAD] = os.environ.get(_DAEMON_OUTLIVES_HEAD), str(_FOREVER)
        logging.getLogger("ray").setLevel(logging.CRITICAL)
        on_sigterm = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False, logging_level=logging.CRITICAL)
        except Exception as error:  # whatever Ray raises, a RuntimeError for two versions of Python, for one
            ray.shutdown()
            raise ClusterError(_describe_refusal(address, error, listens=address != "auto")) from None
        finally:
            del os.environ[_DAEMON_OUTLIVES_HEAD]
            if before is not None:
                os.environ[_DAEMON_OUTLIVES_HEAD] = before
        if on_sigterm is not None:
            signal.signal(signal.SIGTERM, on_sigterm)  # Ray has put its own there
        print_nothing()
        leave_errors_to_python()
        daemons = [peer for _, peer in _list_connections() if isinstance(peer, str) and _SOCKET_OF_DAEMON in peer]
        return cls(str(ray.get_runtime_context().gcs_address), daemons[0] if daemons else "")

    def nodes(self) -> list[RayNode]:
        """The nodes that are alive, by name."""
        alive = [node for node in ray.nodes() if node["Alive"]]
        names = Counter(node["NodeName"] for node in alive)
        self._nodes = {}
        for node in alive:
            name, identity, resources = node["NodeName"], node["NodeID"], node["Resources"]
            self._nodes[identity] = RayNode(
                identity,
                name if names[name] == 1 else f"{name}-{identity[:6]}",
                node["NodeManagerAddress"],
                int(resources.get("CPU", 0)),
                int(resources.get("GPU", 0)),
            )
        return sorted(self._nodes.values(), key=lambda node: node.name)

    def list_died(self) -> list[str]:
        """The names of nodes that were alive when they were last asked for, and are not now."""
        before = dict(self._nodes)
        self.nodes()
        return sorted(node.name for identity, node in before.items() if identity not in self._nodes)

    def node(self, identity: str) -> RayNode:
        """The node of an actor, which may have joined since."""
        if identity not in self._nodes:
            self.nodes()
        return self._nodes[identity]

    def slots(self, identity: str, gpus: bool, bundle: Mapping[str, float]) -> int:
        """How many ranks a node has room for.

        Args:
            identity: the node's.
            gpus: whether the run uses GPUs.
            bundle: what is reserved there.
        """
        return int(bundle["GPU"]) if gpus else max(1, self.node(identity).cpus)

    def cut_off(self, timeout: float) -> str:
        """Return why no node can come any more: the head or the daemon of this node is gone. Else return empty text.

        Whoever asks Ray for a node needs the answer first. Without a head, Ray does not answer for 60 s, and then ends
        this process.

        Args:
            timeout: seconds in which the head must answer.
        """
        return self.describe_lost_head(timeout) or self.daemonless(timeout)

    def daemonless(self, timeout: float) -> str:
        """Return that Ray's daemon on this node has ended, and with it all hosts. Return empty text while it lives.

        A stopped daemon lives. If the head is gone, its daemons end because of that, so the text is empty as well.

        Args:
            timeout: seconds in which the head must answer.
        """
        if not self.daemon or _is_served(self.daemon) or self.describe_lost_head(timeout):
            return ""
        return (
            "Ray's daemon on the node that runs pytest has ended, and Ray has ended the run's hosts on all nodes with "
            "it: start it again with `ray start`, and run the tests again"
        )

    def describe_lost_head(self, timeout: float) -> str:
        """Return that the head is gone. Return empty text while it answers.

        A head that was gone once stays gone for this run.

        Args:
            timeout: seconds in which the head must answer.
        """
        if not self._headless and not (_listens(self.head, timeout) and answers_requests(timeout)):
            self._headless = (
                f"the cluster's head at {self.head} does not answer, and Ray's daemons end a minute after their head: "
                "start the cluster again, and run the tests again"
            )
        return self._headless

    def close(self, timeout: float) -> None:
        """Leaves the cluster.

        Args:
            timeout: seconds for Ray to do so. It would wait for a head or a daemon as long as that is stopped, so
                this process is cut off from them then.
        """
        cutting = threading.Timer(timeout, _cut_off, [self.head])
        cutting.daemon = True
        cutting.start()
        ray.shutdown()
        cutting.cancel()  # not after Ctrl-C: Ray leaves once more as the process exits


def _require_listener(address: str) -> None:
    # Ray itself tries for more than a minute, and prints.
    try:
        _connect(address, _LISTENER_TIMEOUT)
    except (OSError, OverflowError) as error:
        raise ClusterError(_describe_refusal(address, error)) from None


def _listens(address: str, timeout: float) -> bool:
    try:
        _connect(address, timeout)
    except OSError:
        return False
    return True


def _connect(address: str, timeout: float) -> None:
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout).close()


def _cut_off(address: str) -> None:
    """Shuts this process's connections to the head and to Ray's daemon: what waits for an answer fails at once."""
    _, _, port = address.rpartition(":")
    for connected, peer in _list_connections():
        if _SOCKET_OF_DAEMON in peer if isinstance(peer, str) else peer[1] == int(port):
            with contextlib.suppress(OSError):  # the other side has shut it
                connected.shutdown(socket.SHUT_RDWR)


def _list_connections() -> Iterator[tuple[socket.socket, Any]]:
    """This process's connections by sockets of paths and of IP: each, and the path or the address at its other end."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as connected:
            if connected.family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
                yield connected, connected.getpeername()


def _is_served(path: str) -> bool:
    """Whether a process has this socket open, even one that is stopped."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)  # so a stopped one, whose queue is full, is no refusal
        try:
            asking.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except BlockingIOError:
            return True
    return True


def _describe_refusal(address: str, error: Exception, *, listens: bool = False) -> str:
    text = " ".join(str(error).split())
    if "ersion mismatch" in text:
        return f"--cluster {address}: this process and the cluster differ: {text}"
    if listens:
        return (
            f"--cluster {address}: something listens there, and this process cannot join it as a Ray cluster "
            f"({text[:300]}). If the cluster wants a token, set RAY_AUTH_MODE=token and have its ~/.ray/auth_token "
            "here; else look whether this is the port of its head, and whether this machine is one of its nodes"
        )
    where = "no Ray cluster is known on this machine" if address == "auto" else f"no Ray cluster answers at {address}"
    return (
        f"--cluster {address}: {where} ({text[:300]}). Start one (`ray start --head` on one node, `ray start "
        "--address=HEAD:6379` on the others), and run pytest on one of its nodes"
    )
