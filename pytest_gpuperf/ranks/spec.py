"""What a pool of ranks is made of, and the environment that they get."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate

from pytest_gpuperf.ranks.hash_seed import VARIABLE

_RECORDED = "2000"  # entries: torch's own default from 2.11 on; 2.10 records nothing unasked
OF_RANK = re.compile(r"\{rank(?:==(\d+))?\}")
"""In a value that a test sets: ``{rank}`` is the rank's number; ``{rank==2}`` is 1 on rank 2, and 0 on all others."""
GPU = "{gpu}"  # in a value that a test sets: the UUID of the rank's GPU, empty without GPUs
VISIBLE = "CUDA_VISIBLE_DEVICES"
LOOPBACK = "127.0.0.1"
SOCKET_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Name the interface that ranks open their sockets on."""
CURRENT_TEST = "PYTEST_CURRENT_TEST"  # pytest sets it for each phase of each test; ranks do not need it

ISOLATIONS = ("group", "file", "process")
"""The tests that share ranks, by the names that users write: any test, those of a file, or none."""


class Opening(Enum):
    """What ranks have when a program begins."""

    GROUP = "group"
    """A default process group, opened for the test."""
    NOTHING = "nothing"
    """No process group: the program opens its own."""
    LAUNCHER = "launcher"
    """No process group, and the environment variables that torchrun sets, from which the program opens its own."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a cluster, and its part of a pool's ranks."""

    name: str
    """As Ray knows it."""
    address: str
    """IP address by which the other nodes reach it."""
    ranks: int
    """How many ranks of the pool it has."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a rank among its pool's nodes."""

    local_rank: int
    """Its number on its node."""
    local_size: int
    """How many ranks of the pool are on its node."""
    node: int = 0
    """The node's number."""
    nodes: int = 1
    """How many nodes the pool has."""
    store: str = LOOPBACK
    """The IP address on which rank 0's store listens."""
    node_name: str = ""
    """The node's name; empty without a cluster."""


AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Unless it is ``True``, torch has rank 0 open the store of ``init_method``, and not the launcher."""


def make_launcher_environ(rank: int, world_size: int, place: Place) -> dict[str, str]:
    """The variables that torchrun sets, except ``MASTER_PORT``, which rank 0's store provides later.

    ``TORCHELASTIC_USE_AGENT_STORE`` makes ``init_method="env://"`` a client of that store, so that nobody binds a port.

    Args:
        rank: the rank's number.
        world_size: how many ranks there are.
        place: where the rank is.
    """
    of_rank, of_world = str(rank), str(world_size)
    return {
        "RANK": of_rank,
        "LOCAL_RANK": str(place.local_rank),
        "ROLE_RANK": of_rank,
        "GROUP_RANK": str(place.node),
        "WORLD_SIZE": of_world,
        "LOCAL_WORLD_SIZE": str(place.local_size),
        "ROLE_WORLD_SIZE": of_world,
        "GROUP_WORLD_SIZE": str(place.nodes),
        "ROLE_NAME": "default",
        "MASTER_ADDR": place.store,
        "TORCHELASTIC_RUN_ID": "gpuperf",
        AGENT_STORE: "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


MASTER_PORT = "MASTER_PORT"
LAUNCHER_VARIABLES = frozenset({*make_launcher_environ(0, 1, Place(0, 1)), MASTER_PORT})
"""The names of all variables that ``Opening.LAUNCHER`` sets."""


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """What makes two tests share a pool."""

    world_size: int
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs, one for each rank; empty for gloo."""
    environ: tuple[tuple[str, str], ...] = ()
    """Variables that the test sets for its ranks; in a value ``OF_RANK`` and ``GPU`` stand for what a rank has."""
    cores: tuple[frozenset[int], ...] = ()
    """That each rank's threads run on; empty: where the system puts them."""
    timed: bool = False
    """Whether its ranks measure: their communicators share nothing, and the kernel schedules them by default."""
    opening: Opening = Opening.GROUP
    owner: str = ""
    """The test file whose tests alone use the pool; empty if any test may."""
    hash_seed: str = ""
    """The seed of each rank's hashes, in which ``OF_RANK`` stands for its number; empty: all have that of the run."""
    nodes: tuple[Node, ...] = ()
    """The nodes of a cluster, each with its part of the ranks, in rank order; empty: all ranks on this machine."""

    @property
    def backend(self) -> str:
        """``nccl`` on GPUs, ``gloo`` without."""
        return "nccl" if self.gpus else "gloo"

    @property
    def parts(self) -> tuple[range, ...]:
        """The ranks of each node; all of them if there is no cluster."""
        counts = [node.ranks for node in self.nodes] or [self.world_size]
        ends = list(accumulate(counts))
        return tuple(range(end - count, end) for count, end in zip(counts, ends, strict=True))

    def place(self, rank: int) -> Place:
        """The place of a rank."""
        node, part = next((number, part) for number, part in enumerate(self.parts) if rank in part)
        store, name = (self.nodes[0].address, self.nodes[node].name) if self.nodes else (LOOPBACK, "")
        return Place(rank - part.start, len(part), node, len(self.parts), store, name)

    def name(self, rank: int) -> str:
        """A rank, as reports name it: ``rank 9 of 16 (node gpu-b, GPU 1, nccl)``."""
        return format_rank_name(rank, self.world_size, self.backend, self.whereabouts(rank))

    def title(self, rank: int) -> str:
        """A rank, as titles of its output name it: ``rank 9 of 16 (node gpu-b, GPU 1)``."""
        where = self.whereabouts(rank)
        return f"rank {rank} of {self.world_size}" + (f" ({where})" if where else "")

    def whereabouts(self, rank: int) -> str:
        """The node and the GPU of a rank on a cluster, in words; empty without a cluster."""
        if not self.nodes:
            return ""
        place = self.place(rank)
        return f"node {self.nodes[place.node].name}" + (f", GPU {place.local_rank}" if self.gpus else "")


def format_rank_name(rank: int, world_size: int, backend: str, where: str = "") -> str:
    """A rank, as reports name it.

    Args:
        rank: its number.
        world_size: how many ranks there are.
        backend: ``nccl`` or ``gloo``.
        where: its node and GPU, in words; empty without a cluster.
    """
    return f"rank {rank} of {world_size} ({where + ', ' if where else ''}{backend})"


def make_pool_environ(spec: PoolSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the pool's ranks: the controller's, the test's, its own GPUs, loopback for the sockets.

    The interface of a node of a cluster is the node's to find. What the user set stays: the socket interfaces, the
    flight recorder's size, and that NCCL's groups may share channels, are only defaults.
    """
    defaults = {"TORCH_FR_BUFFER_SIZE": _RECORDED}
    if not spec.nodes:
        defaults |= dict.fromkeys(SOCKET_INTERFACES, "lo")
    if spec.gpus and not spec.timed:
        defaults["NCCL_COMM_SPLIT_SHARE_RESOURCES"] = "1"  # a group for each test, without a set of channels for each
    found = {**defaults, **environ, **dict(spec.environ), VISIBLE: ",".join(spec.gpus)}
    found.pop(CURRENT_TEST, None)
    return found


def make_rank_environ(rank: int, spec: PoolSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """One rank's environment: what the test sets has the rank's number and GPU in it.

    Args:
        rank: its number.
        spec: of the pool.
        environ: of the pool's ranks, by ``make_pool_environ``.
    """
    gpu = spec.gpus[rank] if spec.gpus else ""
    hashes = {VARIABLE: OF_RANK.sub(lambda told: _fill_rank(told, rank), spec.hash_seed)} if spec.hash_seed else {}
    values = {name: OF_RANK.sub(lambda told: _fill_rank(told, rank), value) for name, value in spec.environ}
    own = {
        name: values[name].replace(GPU, gpu) for name, value in spec.environ if OF_RANK.search(value) or GPU in value
    }
    place = spec.place(rank)
    launcher = make_launcher_environ(rank, spec.world_size, place) if spec.opening is Opening.LAUNCHER else {}
    if launcher and AGENT_STORE in values:
        launcher[AGENT_STORE] = values[AGENT_STORE]
    part = spec.parts[place.node]
    visible = {VISIBLE: ",".join(spec.gpus[part.start : part.stop])} if spec.nodes else {}
    set_by_test = dict(spec.environ)
    return {**environ, **visible, **launcher, **(hashes if VARIABLE not in set_by_test else {}), **own}


def _fill_rank(told: re.Match[str], rank: int) -> str:
    return str(rank) if told[1] is None else str(int(int(told[1]) == rank))
