"""The nodes of a run: this machine, or those that a feature brings, as of a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from pytest_gpuperf.hardware.device import Observation, Xid
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.hardware.site import Site, make_site
from pytest_gpuperf.hardware.watch import Watch
from pytest_gpuperf.leases.leasing import Leasing
from pytest_gpuperf.leases.lessor import Lessor
from pytest_gpuperf.options import Options
from pytest_gpuperf.ranks.forkserver_client import ForkserverClient
from pytest_gpuperf.ranks.local_ranks import LocalNode
from pytest_gpuperf.ranks.node_ranks import Nodes
from pytest_gpuperf.ranks.placement import Capacity
from pytest_gpuperf.ranks.spec import Node
from pytest_gpuperf.run.selection import make_capacity


@dataclass(frozen=True, slots=True)
class Wanted:
    """The ranks that a test wants a place for."""

    world_size: int
    gpus: tuple[str, ...]
    """UUIDs of the GPUs that the test has leased, in rank order; empty for gloo."""
    on_gpus: bool
    """Whether each rank has a GPU, if the run uses any."""
    timed: bool
    """Whether they measure."""
    nodes: int | None = None
    """On how many nodes they are to be; None if it does not matter."""
    per_node: int | None = None
    """How many of them each node is to have; None if it does not matter."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of each rank."""

    gpus: tuple[str, ...]
    """UUIDs in rank order; empty for gloo."""
    nodes: tuple[Node, ...] = ()
    """Empty on this machine."""
    cores: tuple[frozenset[int], ...] = ()
    """The cores that each rank is bound to; empty if none is."""


class Watching(Protocol):
    """What was observed of GPUs while a block ran."""

    @property
    def seen(self) -> Sequence[Observation]:
        """All observations, of each GPU in order."""
        ...

    @property
    def xids(self) -> Sequence[Xid]:
        """The errors that drivers reported."""
        ...


class Kept(Protocol):
    """Something that a process of a node made, and keeps until the controller closes it."""

    @property
    def told(self) -> Any:
        """What the controller learns of it; can be pickled."""
        ...

    def close(self) -> None:
        """Undoes it."""
        ...


class KeptOnNodes(Protocol):
    """What was made on each node."""

    @property
    def told(self) -> Mapping[str, Any]:
        """What the controller learned of it, by the node's name."""
        ...

    def close(self) -> Sequence[str]:
        """Undoes it on all nodes; returns a line for each node on which it is left."""
        ...


@dataclass(frozen=True, slots=True)
class Lending:
    """How a process that this one starts is to use the nodes of the run."""

    first: Sequence[str] = ()
    """Modules that its ranks load before all others."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """In the environment of the ranks on all nodes."""
    of_node: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """And in that of the ranks of a node, by its name."""


class RunNodes(Nodes, Protocol):
    """The nodes of a run, which start its ranks, and all that depends on whether there is more than one."""

    @property
    def machine(self) -> Machine:
        """The GPUs of all nodes, as one machine's."""
        ...

    @property
    def capacity(self) -> Capacity:
        """What ranks may be put on."""
        ...

    @property
    def size(self) -> int:
        """How many nodes the run has, if none is lost."""
        ...

    @property
    def option(self) -> str:
        """What a command line says to have these nodes again; empty for this machine."""
        ...

    @property
    def hash_seed(self) -> str:
        """The value of PYTHONHASHSEED for all ranks; empty: each process has its own."""
        ...

    @property
    def no_race(self) -> str:
        """Why two codes cannot race on them; empty if they can."""
        ...

    @property
    def losses(self) -> Sequence[str]:
        """How nodes were lost, in the order of their losses."""
        ...

    @property
    def node_names(self) -> Mapping[str, str]:
        """The name of the node of each GPU, by the GPU's UUID; empty if there is one."""
        ...

    @property
    def lacks(self) -> Callable[[str], bool] | None:
        """Returns whether a node lacks an installed package; None if ranks import what this process does."""
        ...

    def lessor(self, options: Options, tell: Callable[[str], None], leave: Callable[[], None]) -> Lessor:
        """Returns what leases GPUs and cores to tests.

        Args:
            options: of the run.
            tell: prints a line while a test waits.
            leave: ends what is on the GPUs between two tests.
        """
        ...

    def look(self) -> None:
        """Finds out which nodes are lost, before a test begins."""
        ...

    def place(self, wanted: Wanted) -> Placement:
        """Returns the place of each rank.

        Raises:
            LaunchError: they do not fit, since nodes were lost.
        """
        ...

    def site(self) -> Site:
        """Returns the nodes, and how they are set up now."""
        ...

    def watch(self, gpus: Sequence[str]) -> AbstractContextManager[Watching]:
        """Returns what observes GPUs while a block runs."""
        ...

    def keep(self, make: Callable[..., Kept], *arguments: object) -> KeptOnNodes:
        """Calls a function on each node; nothing on this machine, where this process can do it.

        Raises:
            CannotRace: what the function raised, with the node's name, or a node is lost. Nothing is kept.
        """
        ...

    def lend(self, lending: Lending) -> Mapping[str, str]:
        """Returns variables with which another run of pytest has its ranks on these nodes; none for this machine."""
        ...

    def header(self) -> Sequence[str]:
        """Returns lines for pytest's header, the first one about what ranks run on; empty ones are not printed."""
        ...

    def report(self) -> list[str]:
        """Returns lines for the run's summary."""
        ...


class NothingKept:
    """Nothing is kept: no node but this machine has ranks."""

    told: Mapping[str, Any] = MappingProxyType({})

    def close(self) -> Sequence[str]:
        """Leaves nothing."""
        return ()


class ThisMachine(LocalNode):
    """This machine, as the only node of a run."""

    option = ""
    no_race = ""
    size = 1
    losses: Sequence[str] = ()
    lacks: Callable[[str], bool] | None = None

    def __init__(self, machine: Machine, options: Options, forkserver: ForkserverClient) -> None:
        """Starts nothing yet.

        Args:
            machine: with the GPUs of the run.
            options: what the user asked for.
            forkserver: starts the ranks.
        """
        super().__init__(forkserver)
        self.machine = machine
        self.hash_seed = options.hash_seed
        self.node_names: Mapping[str, str] = {}
        self._binds = options.numa_binding

    @property
    def capacity(self) -> Capacity:
        """What ranks may be put on."""
        return make_capacity(self.machine)

    def lessor(self, options: Options, tell: Callable[[str], None], leave: Callable[[], None]) -> Lessor:
        """Returns what leases this machine's GPUs and cores to tests."""
        return Leasing(
            self.machine, options.leases, timeout=options.lease_timeout, tell=tell, leave=leave, run=options.run
        )

    def look(self) -> None:
        """Does nothing: this machine is there."""

    def place(self, wanted: Wanted) -> Placement:
        """Returns the leased GPUs, and the cores near them if the ranks measure."""
        gpus = wanted.gpus[: wanted.world_size]
        if not (wanted.timed and gpus and self._binds):
            return Placement(gpus)
        return Placement(gpus, cores=self.machine.find_cores_near(gpus, frozenset(os.sched_getaffinity(0))))

    def site(self) -> Site:
        """Returns this machine, and how it is set up now."""
        return make_site(self.machine, binds=self._binds)

    def watch(self, gpus: Sequence[str]) -> AbstractContextManager[Watching]:
        """Returns what observes GPUs while a block runs."""
        return Watch(gpus, self.machine.devices)

    def keep(self, make: Callable[..., Kept], *arguments: object) -> KeptOnNodes:
        """Keeps nothing."""
        return NothingKept()

    def lend(self, lending: Lending) -> Mapping[str, str]:
        """Returns none: each process has this machine."""
        return {}

    def header(self) -> Sequence[str]:
        """Returns what ranks run on."""
        return [self.machine.describe()]

    def report(self) -> list[str]:
        """Returns nothing: this machine is not lost."""
        return []
