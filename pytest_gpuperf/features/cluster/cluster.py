"""The nodes of a Ray cluster that a run uses: reserved together, each with an actor that hosts its ranks."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from ray.util import placement_group

from pytest_gpuperf.features.cluster import token
from pytest_gpuperf.features.cluster.admission import require_reachable
from pytest_gpuperf.features.cluster.connection import Connection
from pytest_gpuperf.features.cluster.failures import NodeLostError
from pytest_gpuperf.features.cluster.keeping import KeptOnMembers
from pytest_gpuperf.features.cluster.leasing import ClusterLeasing
from pytest_gpuperf.features.cluster.lending import Lent, LentNode
from pytest_gpuperf.features.cluster.machines import merge_machines
from pytest_gpuperf.features.cluster.member import Member, await_long_results
from pytest_gpuperf.features.cluster.membership import Membership, require_none_lost
from pytest_gpuperf.features.cluster.remote_ranks import RemoteRanks
from pytest_gpuperf.features.cluster.reservation import Reservation, make_reservation
from pytest_gpuperf.features.cluster.shipping import Shipping
from pytest_gpuperf.features.cluster.watching import ClusterWatch
from pytest_gpuperf.features.cluster.wire import Up
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.hardware.site import Site, join_site
from pytest_gpuperf.options import Options
from pytest_gpuperf.ranks.failures import LaunchError
from pytest_gpuperf.ranks.node_ranks import Started
from pytest_gpuperf.ranks.placement import Capacity, NoPlaceError, deal
from pytest_gpuperf.ranks.spec import Node, PoolSpec
from pytest_gpuperf.run.nodes import Kept, Lending, Placement, Wanted

START_TIMEOUT = 420.0  # seconds for a forkserver that loads torch from a cold network disk, and for its ranks


class Cluster:
    """Starts ranks on the nodes of the run. A node that is lost is replaced when Ray has another."""

    hash_seed = ""  # ranks are forked on the nodes, whose environment is theirs
    no_race = "on a cluster the baseline alone decides, since no older commit is checked out on its nodes"

    def __init__(
        self,
        connection: Connection,
        address: str,
        reserved: Reservation,
        preload: Sequence[str],
        preload_if_used: Mapping[str, str],
        patience: float,
        unlike: bool,
        lent: Lent | None = None,
    ) -> None:
        """Reserves the nodes, and starts an actor on each.

        Args:
            connection: to Ray.
            address: of the cluster, as the user gave it.
            reserved: how many nodes, and what of each.
            preload: as ``ForkserverClient``.
            preload_if_used: as ``ForkserverClient``.
            patience: seconds in which a node must answer; one that does not is lost.
            unlike: whether nodes may differ in hardware.
            lent: the nodes of the run that started this one, which are reserved; None to reserve some.

        Raises:
            ClusterError: Ray cannot give these nodes, or they are not alike in software.
        """
        self._connection = connection
        self._reserved = reserved
        self.option = f"--cluster {address}"
        self._patience = patience
        self._preload_if_used = tuple(preload_if_used)
        self._pools = itertools.count(1)
        self._used: set[str] = set()
        self._lacking: dict[str, bool] = {}
        self._lacking_of = 0
        """How many nodes had been replaced when that was found."""
        self._shipping = Shipping()
        self._keeps = itertools.count(1)
        # Ray removes it with the job, that is, when this process leaves. To ask for that takes a minute without a head.
        self._group = (
            placement_group(list(reserved.bundles), strategy="STRICT_SPREAD") if lent is None else lent.group()
        )
        loaded = (tuple(preload), dict(preload_if_used))
        self._nodes = Membership(connection, self._group, reserved, loaded, patience, unlike, lent)
        self._nodes.join()

    @classmethod
    def join(
        cls,
        address: str,
        gpus: int | None,
        preload: Sequence[str],
        preload_if_used: Mapping[str, str],
        *,
        patience: float,
        unlike: bool = False,
        lent: Lent | None = None,
    ) -> Self:
        """The nodes of a run with ``--cluster address --gpus gpus``; those that are lent, if they are.

        Raises:
            ClusterError: there is no such cluster, or it lacks what the run needs.
        """
        connection = Connection.to(address if lent is None else lent.head)
        try:
            nodes = connection.nodes()
            require_reachable({node.name: node.address for node in nodes})
            require_none_lost([] if lent is None else lent.list_lost({node.name for node in nodes}))
            reserved = make_reservation(nodes, gpus) if lent is None else lent.reserved
            return cls(connection, address, reserved, preload, preload_if_used, patience, unlike, lent)
        except BaseException:
            connection.close(patience)
            raise

    @property
    def capacity(self) -> Capacity:
        """What there is to put ranks on."""
        return Capacity(tuple(member.slots for member in self._nodes.living), self._reserved.gpus)

    @property
    def size(self) -> int:
        """How many nodes the run has, if none is lost."""
        return len(self._reserved.bundles)

    @property
    def losses(self) -> list[str]:
        """How nodes were lost, in the order of their losses."""
        return self._nodes.losses

    @property
    def machine(self) -> Machine:
        """The GPUs of all nodes, as one machine's."""
        return merge_machines(self._nodes.machines)

    def site(self) -> Site:
        """The nodes, and how they are set up now.

        Raises:
            LaunchError: a node is lost.
        """
        return join_site(self._ask(self._nodes.members, "site"), self.machine.identity)

    @property
    def node_names(self) -> dict[str, str]:
        """The name of the node of each GPU, by the GPU's UUID."""
        return {uuid: member.name for member in self._nodes.members for uuid in member.facts.machine.gpu_uuids}

    def lessor(self, options: Options, tell: Callable[[str], None], leave: Callable[[], None]) -> ClusterLeasing:
        """Returns what leases the GPUs of the run on its nodes; as ``ClusterLeasing``."""
        return ClusterLeasing(
            lambda: self._nodes.living, options.leases, timeout=options.lease_timeout, tell=tell, leave=leave
        )

    def watch(self, gpus: Sequence[str]) -> ClusterWatch:
        """What observes GPUs on all nodes while a block runs, as ``hardware.watch.Watch`` does those of a machine."""
        by_member = [
            (member, own)
            for member in self._nodes.living
            if (own := [uuid for uuid in member.facts.machine.gpu_uuids if uuid in gpus])
        ]
        return ClusterWatch(by_member)

    def keep(self, make: Callable[..., Kept], *arguments: object) -> KeptOnMembers:
        """Calls a function on each node, which keeps what it returns; as ``RunNodes``."""
        return KeptOnMembers.make_on_nodes(self._nodes.living, next(self._keeps), make, arguments)

    def lend(self, lending: Lending) -> Mapping[str, str]:
        """Returns variables with which another run of pytest has its ranks on these nodes, as long as this one does."""
        nodes = [
            LentNode(
                member.name,
                member.bundle,
                ",".join(member.facts.machine.gpu_uuids) if self._reserved.gpus else None,
                {**lending.variables, **lending.of_node.get(member.name, {})},
            )
            for member in self._nodes.living
        ]
        return Lent(
            self._connection.head, self._group.id.hex(), self._reserved, tuple(lending.first), tuple(nodes)
        ).variables()

    def header(self) -> list[str]:
        """Returns what ranks run on, and a warning if the cluster may be open to anybody."""
        names = ", ".join(member.name for member in self._nodes.members)
        with_what = f"NCCL, hardware key {self.machine.key}" if self._reserved.gpus else "gloo"
        return [
            f"ranks run on {len(self._nodes.members)} nodes ({names}) with {with_what}",
            token.format_warning(os.environ),
        ]

    def _list_gpus(self, nodes: Sequence[Node]) -> tuple[str, ...]:
        """Returns UUIDs of the GPUs of ranks that are placed on nodes, in rank order; empty without GPUs."""
        by_name = {member.name: member for member in self._nodes.members}
        gpus = [by_name[node.name].facts.machine.gpu_uuids[: node.ranks] for node in nodes]
        return tuple(uuid for some in gpus for uuid in some)

    def place(self, wanted: Wanted) -> Placement:
        """Returns nodes for a test's ranks, those that are left if some were lost, and the GPUs of all ranks.

        Raises:
            LaunchError: they do not fit, since nodes were lost.
        """

        def dealt() -> list[int]:
            there = self.capacity
            there = replace(there, gpus=there.gpus and wanted.on_gpus)
            return deal(wanted.world_size, there, nodes=wanted.nodes, per_node=wanted.per_node)

        try:
            counts = dealt()
        except NoPlaceError:
            self._nodes.heal(wait=True)
            try:
                counts = dealt()
            except NoPlaceError as error:
                cause = self._nodes.cut_off()
                losses = [loss for loss in self._nodes.losses if loss != cause]
                said = [str(error), cause, f"the run has lost nodes: {'; '.join(losses)}" if losses else ""]
                raise LaunchError("; ".join(filter(None, said))) from None
        living = self._nodes.living
        nodes = tuple(Node(one.name, one.address, count) for one, count in zip(living, counts, strict=False))
        return Placement(self._list_gpus(nodes) if wanted.on_gpus else (), nodes)

    def lacks(self, package: str) -> bool:
        """Whether it is installed on fewer than all nodes; what lies in this process's folder is no installation.

        Raises:
            LaunchError: a node is lost.
        """
        if self._lacking_of != self._nodes.replaced:
            self._lacking, self._lacking_of = {}, self._nodes.replaced
        if package not in self._lacking:
            self._lacking[package] = not all(self._ask(self._nodes.living, "has", package, _own_folders()).values())
        return self._lacking[package]

    def _ask(self, members: Sequence[Member], method: str, *args: Any) -> dict[str, Any]:
        """What each member answers, by its name. Raises LaunchError if a node is lost."""
        try:
            since = time.monotonic()
            asked = [(member, member.call(method, *args)) for member in members]
            return {member.name: member.result(reference, since=since) for member, reference in asked}
        except NodeLostError as error:
            raise LaunchError(self._nodes.add_cause(str(error))) from None

    def look(self) -> None:
        """Finds out which nodes are lost, and takes in what Ray gave in their place."""
        self._nodes.look()

    def report(self) -> list[str]:
        """Return the lines of the run's summary: the losses, and how many nodes are left; none if none was lost."""
        return self._nodes.report()

    def warm_up(self) -> None:
        """Has what ranks are forked from begin to start on all nodes; waits for nothing."""
        for member in self._nodes.living:
            member.call("warm_up")

    def renew(self) -> None:
        """Does nothing: a node's ranks are all forked from one process, whose start all nodes would wait for."""

    def start(self, spec: PoolSpec, environ: Mapping[str, str], *, live: bool) -> Started:
        """Starts the ranks of a pool on its nodes, and waits until they are up.

        Args:
            spec: how many, and on what.
            environ: of the ranks, by ``make_pool_environ``.
            live: whether what they print is to be heard as they print it.

        Raises:
            LaunchError: a rank did not come up; names it, and what it printed. Or a node is lost.
        """
        pool, by_name = next(self._pools), {member.name: member for member in self._nodes.members}
        members = [by_name[node.name] for node in spec.nodes]
        try:
            for member in members:
                member.compare_clocks()
            asked = [
                (member, part, member.call("start", pool, spec, part, environ, live, sorted(self._used)))
                for member, part in zip(members, spec.parts, strict=True)
            ]
            told: list[Up] = await_long_results([(member, reference) for member, _, reference in asked], START_TIMEOUT)
            ups = [(member, part, up) for (member, part, _), up in zip(asked, told, strict=True)]
            for _, _, up in ups:
                if up.error:
                    raise LaunchError(up.error)
        except BaseException as error:
            self._abandon(pool, members, wait=isinstance(error, Exception))
            if isinstance(error, NodeLostError):
                raise LaunchError(self._nodes.add_cause(f"ranks could not be started: {error}")) from None
            raise
        ports = [up.store_port for _, _, up in ups if up.store_port is not None]
        return Started(
            [RemoteRanks(member, pool, part, up.pids, self._shipping.send) for member, part, up in ups], ports[0]
        )

    @property
    def would_preload(self) -> tuple[str, ...]:
        """Names of modules that are worth telling of, with ``note_used``."""
        return self._preload_if_used

    def note_used(self, modules: Iterable[str]) -> None:
        """Takes note of what a rank had imported in the end: later ones find it there."""
        self._used.update(modules)

    def close(self) -> None:
        """Ends what ranks are started from, and gives the nodes back to Ray."""
        self._nodes.give_back()
        self._connection.close(self._patience)

    def _abandon(self, pool: int, members: Sequence[Member], *, wait: bool) -> None:
        # A host does one thing after another: one whose ranks are still starting is slow, and not lost.
        asked = [(member, member.call("end", pool, False)) for member in members if not member.lost]
        while wait and (asked := [(member, reference) for member, reference in asked if not member.lost]):
            with contextlib.suppress(NodeLostError):
                await_long_results(asked, START_TIMEOUT)
                return


def _own_folders() -> list[str]:
    # What Ray adds to its workers' paths: they would find, below the same name, whatever is there on their node.
    return ["", os.path.abspath(os.curdir), os.path.dirname(os.path.realpath(sys.argv[0]))]
