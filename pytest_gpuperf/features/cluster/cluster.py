"""The nodes of a Ray cluster that a run uses: reserved together, each with an actor that hosts its ranks."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import ray
from ray.util import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from pytest_gpuperf.features.cluster import token
from pytest_gpuperf.features.cluster.admission import require_alike, require_reachable
from pytest_gpuperf.features.cluster.connection import Connection
from pytest_gpuperf.features.cluster.failures import ClusterError, NodeLostError
from pytest_gpuperf.features.cluster.keeping import KeptOnMembers
from pytest_gpuperf.features.cluster.leasing import ClusterLeasing
from pytest_gpuperf.features.cluster.lending import Lent, LentNode
from pytest_gpuperf.features.cluster.member import Member, long_results
from pytest_gpuperf.features.cluster.node_host import RAY_LEAVES_CHILDREN, NodeHost
from pytest_gpuperf.features.cluster.remote_ranks import RemoteRanks
from pytest_gpuperf.features.cluster.reservation import Reservation, reservation
from pytest_gpuperf.features.cluster.watching import ClusterWatch
from pytest_gpuperf.features.cluster.wire import NodeFacts, Up, send, size_of
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.hardware.nodes import as_one
from pytest_gpuperf.hardware.site import Site, join_site
from pytest_gpuperf.options import Options
from pytest_gpuperf.ranks.channel import LARGE, Parcel
from pytest_gpuperf.ranks.failures import LaunchError
from pytest_gpuperf.ranks.node_ranks import Started
from pytest_gpuperf.ranks.placement import Capacity, NoPlaceError, deal
from pytest_gpuperf.ranks.spec import Node, PoolSpec
from pytest_gpuperf.run.nodes import Kept, Lending, Placement, Wanted

START_TIMEOUT = 420.0  # seconds for a forkserver that loads torch from a cold network disk, and for its ranks
JOIN_TIMEOUT = 120.0  # seconds for Ray to place what is reserved, and for its workers to start
HEAL = 2.0  # times as long as a node has to answer, a test waits for one in place of a lost one that it needs
_LOOK = 2.0  # seconds between looks at whether a node has died that the run waits for
_AGAIN = 0.2  # seconds before Ray is asked for a node again


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
        self._unlike = unlike
        self._preload = tuple(preload), dict(preload_if_used)
        self._pools = itertools.count(1)
        self._used: set[str] = set()
        self._lacking: dict[str, bool] = {}
        self._shipped: tuple[weakref.ref[Parcel], Any] | None = None
        self._coming: dict[int, tuple[Any, Any, Any]] = {}
        """Actors in place of lost ones, by bundle: they start when Ray has a node for it."""
        self.members: list[Member] = []
        """The nodes, the one of rank 0 first."""
        self.losses: list[str] = []
        """How nodes were lost, in the order of their losses."""
        self._heal_timeout = 0.0
        """Seconds that the next test waits for a node. After a loss one test waits; others would wait in vain."""
        self._lent = lent
        self._keeps = itertools.count(1)
        # Ray removes it with the job, that is, when this process leaves. To ask for that takes a minute without a head.
        self._group = (
            placement_group(list(reserved.bundles), strategy="STRICT_SPREAD") if lent is None else lent.group()
        )
        self._join(reserved)

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
            _require_none_lost([] if lent is None else lent.list_lost({node.name for node in nodes}))
            reserved = reservation(nodes, gpus) if lent is None else lent.reserved
            return cls(connection, address, reserved, preload, preload_if_used, patience, unlike, lent)
        except BaseException:
            connection.close(patience)
            raise

    @property
    def capacity(self) -> Capacity:
        """What there is to put ranks on."""
        return Capacity(tuple(member.slots for member in self._living()), self._reserved.gpus)

    @property
    def size(self) -> int:
        """How many nodes the run has, if none is lost."""
        return len(self._reserved.bundles)

    @property
    def machine(self) -> Machine:
        """The GPUs of all nodes, as one machine's."""
        return as_one(self._machines)

    def site(self) -> Site:
        """The nodes, and how they are set up now.

        Raises:
            LaunchError: a node is lost.
        """
        try:
            since = time.monotonic()
            asked = [(member, member.call("site")) for member in self.members]
            sites = {member.name: member.result(reference, since=since) for member, reference in asked}
            return join_site(sites, self.machine.identity)
        except NodeLostError as error:
            raise LaunchError(self._with_cause(str(error))) from None

    @property
    def _machines(self) -> dict[str, Machine]:
        return {member.name: replace(member.facts.machine, fabric=member.facts.fabric) for member in self.members}

    @property
    def node_names(self) -> dict[str, str]:
        """The name of the node of each GPU, by the GPU's UUID."""
        return {uuid: member.name for member in self.members for uuid in member.facts.machine.gpu_uuids}

    def lessor(self, options: Options, tell: Callable[[str], None], leave: Callable[[], None]) -> ClusterLeasing:
        """Returns what leases the GPUs of the run on its nodes; as ``ClusterLeasing``."""
        return ClusterLeasing(self._living, options.leases, timeout=options.lease_timeout, tell=tell, leave=leave)

    def watch(self, gpus: Sequence[str]) -> ClusterWatch:
        """What observes GPUs on all nodes while a block runs, as ``hardware.watch.Watch`` does those of a machine."""
        by_member = [
            (member, own)
            for member in self._living()
            if (own := [uuid for uuid in member.facts.machine.gpu_uuids if uuid in gpus])
        ]
        return ClusterWatch(by_member)

    def keep(self, make: Callable[..., Kept], *arguments: object) -> KeptOnMembers:
        """Calls a function on each node, which keeps what it returns; as ``RunNodes``."""
        return KeptOnMembers.make_on_nodes(self._living(), next(self._keeps), make, arguments)

    def lend(self, lending: Lending) -> Mapping[str, str]:
        """Returns variables with which another run of pytest has its ranks on these nodes, as long as this one does."""
        nodes = [
            LentNode(
                member.name,
                member.bundle,
                ",".join(member.facts.machine.gpu_uuids) if self._reserved.gpus else None,
                {**lending.variables, **lending.of_node.get(member.name, {})},
            )
            for member in self._living()
        ]
        return Lent(
            self._connection.head, self._group.id.hex(), self._reserved, tuple(lending.first), tuple(nodes)
        ).variables()

    def header(self) -> list[str]:
        """Returns what ranks run on, and a warning if the cluster may be open to anybody."""
        names = ", ".join(member.name for member in self.members)
        with_what = f"NCCL, hardware key {self.machine.key}" if self._reserved.gpus else "gloo; correctness only"
        return [f"ranks run on {len(self.members)} nodes ({names}) with {with_what}", token.warning(os.environ)]

    def _gpus_of(self, nodes: Sequence[Node]) -> tuple[str, ...]:
        """Returns UUIDs of the GPUs of ranks that are placed on nodes, in rank order; empty without GPUs."""
        by_name = {member.name: member for member in self.members}
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
            self._heal(wait=True)
            try:
                counts = dealt()
            except NoPlaceError as error:
                cause = self._cut_off()
                losses = [loss for loss in self.losses if loss != cause]
                said = [str(error), cause, f"the run has lost nodes: {'; '.join(losses)}" if losses else ""]
                raise LaunchError("; ".join(filter(None, said))) from None
        living = self._living()
        nodes = tuple(Node(one.name, one.address, count) for one, count in zip(living, counts, strict=False))
        return Placement(self._gpus_of(nodes) if wanted.on_gpus else (), nodes)

    def lacks(self, package: str) -> bool:
        """Whether it is installed on fewer than all nodes; what lies in this process's folder is no installation."""
        if package not in self._lacking:
            since = time.monotonic()
            asked = [(member, member.call("has", package, _own_folders())) for member in self._living()]
            self._lacking[package] = not all(member.result(reference, since=since) for member, reference in asked)
        return self._lacking[package]

    def look(self) -> None:
        """Finds out which nodes are lost, and takes in what Ray gave in their place."""
        since = time.monotonic()
        asked = [(member, member.call("clock")) for member in self._living()]
        for member, reference in asked:
            with contextlib.suppress(NodeLostError):
                member.result(reference, since=since)
        if ended := self._daemonless():
            for member in self._living():  # Ray is about to end their hosts
                member.lose(ended)
        self._heal(wait=False)

    def warm_up(self) -> None:
        """Has what ranks are forked from begin to start on all nodes; waits for nothing."""
        for member in self._living():
            member.call("warm_up")

    def renew(self) -> None:
        """Does nothing: a node's ranks are all forked from one process, whose start all nodes would wait for."""

    def start(self, spec: PoolSpec, environ: Mapping[str, str], *, live: bool) -> Started:
        """Starts the ranks of a pool on its nodes, and waits until they are up.

        Args:
            spec: how many, and on what.
            environ: of the ranks, by ``rank_environ``.
            live: whether what they print is to be heard as they print it.

        Raises:
            LaunchError: a rank did not come up; names it, and what it printed. Or a node is lost.
        """
        pool, by_name = next(self._pools), {member.name: member for member in self.members}
        members = [by_name[node.name] for node in spec.nodes]
        try:
            for member in members:
                member.compare_clocks()
            asked = [
                (member, part, member.call("start", pool, spec, part, environ, live, sorted(self._used)))
                for member, part in zip(members, spec.parts, strict=True)
            ]
            told: list[Up] = long_results([(member, reference) for member, _, reference in asked], START_TIMEOUT)
            ups = [(member, part, up) for (member, part, _), up in zip(asked, told, strict=True)]
            for _, _, up in ups:
                if up.error:
                    raise LaunchError(up.error)
        except BaseException as error:
            self._abandon(pool, members, wait=isinstance(error, Exception))
            if isinstance(error, NodeLostError):
                raise LaunchError(self._with_cause(f"ranks could not be started: {error}")) from None
            raise
        ports = [up.store_port for _, _, up in ups if up.store_port is not None]
        return Started([RemoteRanks(member, pool, part, up.pids, self._ship) for member, part, up in ups], ports[0])

    @property
    def would_preload(self) -> tuple[str, ...]:
        """Names of modules that are worth telling of, with ``note_used``."""
        return tuple(self._preload[1])

    def note_used(self, modules: Iterable[str]) -> None:
        """Takes note of what a rank had imported in the end: later ones find it there."""
        self._used.update(modules)

    def close(self) -> None:
        """Ends what ranks are started from, and gives the nodes back to Ray."""
        since = time.monotonic()
        closing = []
        for member in self._living():
            closing.append((member, member.call("close")))
        for member, reference in closing:
            try:
                member.result(reference, since=since)
            except NodeLostError:
                continue
            ray.kill(member.actor)
        for _, actor, _ in self._coming.values():
            ray.kill(actor)
        self._connection.close(self._patience)

    def report(self) -> list[str]:
        """Return the lines of the run's summary: the losses, and how many nodes are left; none if none was lost."""
        losses = [*self.losses, *(member.lost for member in self.members if member.lost)]
        if not losses:
            return []
        left = f"the run began with {self.size} nodes and ended with {len(self._living())}"
        return [f"cluster: {line}" for line in dict.fromkeys(filter(None, (*losses, self._cut_off(), left)))]

    def _cut_off(self) -> str:
        return self._connection.cut_off(self._patience)

    def _daemonless(self) -> str:
        return self._connection.daemonless(self._patience)

    def _with_cause(self, text: str) -> str:
        cause = self._cut_off()
        return text if cause in text else f"{text}; {cause}"

    def _living(self) -> list[Member]:
        return [member for member in self.members if not member.lost]

    def _join(self, reserved: Reservation) -> None:
        until = time.monotonic() + JOIN_TIMEOUT
        while self._lent is None and not self._group.wait(_LOOK):
            _require_none_lost(self._connection.list_died())
            if time.monotonic() > until:
                raise ClusterError(
                    f"Ray did not give the run {reserved} within {JOIN_TIMEOUT:g} s: others use them, as `ray status` "
                    "shows"
                )
        bundles = range(len(reserved.bundles)) if self._lent is None else [node.bundle for node in self._lent.nodes]
        starting = [(bundle, self._host(bundle)) for bundle in bundles]
        for bundle, (identity, actor, facts) in starting:
            try:
                while (
                    self._lent is not None and time.monotonic() < until and not ray.wait([identity], timeout=_LOOK)[0]
                ):
                    _require_none_lost(self._connection.list_died())  # Ray would look for another node in its place
                self.members.append(self._member(bundle, ray.get(identity, timeout=JOIN_TIMEOUT), actor, facts))
            except ray.exceptions.RayError as error:
                raise ClusterError(_unusable(error)) from None
        # By kind before name: on unlike nodes too, the key then says on which GPUs a few ranks are.
        self.members.sort(key=lambda member: (-member.slots, member.facts.machine.key, member.name))
        self._require_alike()

    def _require_alike(self) -> None:
        require_alike(self.members, self._machines, gpus=self._reserved.gpus, unlike=self._unlike)

    def _host(self, bundle: int) -> tuple[Any, Any, Any]:
        """Start an actor on a bundle; return the future of its node, the actor, and the future of the node's facts."""
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        lent = None if self._lent is None else self._lent.of_bundle(bundle)
        # The host of the run that lends a node has all that is reserved there.
        resources: Mapping[str, float] = self._reserved.bundles[bundle] if lent is None else {}
        remote: Any = ray.remote  # which is annotated without some of what it takes
        host = remote(
            num_cpus=resources.get("CPU", 0), num_gpus=resources.get("GPU", 0), concurrency_groups={"wake": 1}
        )(NodeHost)
        actor = host.options(scheduling_strategy=strategy, runtime_env={"env_vars": RAY_LEAVES_CHILDREN}).remote(
            *self._preload, {} if lent is None else lent.variables, None if lent is None else lent.gpus
        )
        return actor.identity.remote(), actor, actor.facts.remote(self._reserved.gpus)

    def _member(self, bundle: int, identity: str, actor: Any, facts: Any) -> Member:
        node = self._connection.node(identity)
        told: NodeFacts = ray.get(facts, timeout=JOIN_TIMEOUT)
        slots = self._connection.slots(identity, self._reserved.gpus, self._reserved.bundles[bundle])
        return Member(
            node.name, node.address, bundle, slots, actor, told, self._patience, self._daemonless, self._cut_off
        )

    def _heal(self, *, wait: bool) -> None:
        """Takes in the nodes that Ray gave in place of lost ones.

        Args:
            wait: whether to wait for them, unless another test has waited since the last loss.
        """
        lost = [member for member in self.members if member.lost]
        for member in lost:
            self.members.remove(member)
            self.losses.append(member.lost)
            self._heal_timeout = HEAL * self._patience
        if self._lent is not None:  # another node has not what the run that lends them made on these
            return
        if (lost or self._coming) and self._cut_off():
            self._coming.clear()
            return
        for member in lost:
            self._coming[member.bundle] = self._host(member.bundle)
        until = time.monotonic() + (self._heal_timeout if wait else 0.0)
        if wait:
            self._heal_timeout = 0.0
        while self._coming:
            self._take_in(max(0.0, until - time.monotonic()))
            if time.monotonic() >= until:
                return

    def _take_in(self, timeout: float) -> None:
        for bundle, (identity, actor, facts) in list(self._coming.items()):
            ready, _ = ray.wait([facts], timeout=min(timeout, 1.0))
            if not ready:
                continue
            del self._coming[bundle]
            try:
                self.members.append(self._member(bundle, ray.get(identity, timeout=JOIN_TIMEOUT), actor, facts))
                self._lacking.clear()
                self._require_alike()
            except ray.exceptions.RayError:
                time.sleep(_AGAIN)
                if not self._cut_off():
                    self._coming[bundle] = self._host(bundle)
            except ClusterError as error:
                self.losses.append(str(error))
                ray.kill(self.members.pop().actor)

    def _abandon(self, pool: int, members: Sequence[Member], *, wait: bool) -> None:
        # A host does one thing after another: one whose ranks are still starting is slow, and not lost.
        asked = [(member, member.call("end", pool, False)) for member in members if not member.lost]
        while wait and (asked := [(member, reference) for member, reference in asked if not member.lost]):
            with contextlib.suppress(NodeLostError):
                long_results(asked, START_TIMEOUT)
                return

    def _ship(self, task: Parcel) -> Any:
        """A task as an argument: what is large goes to Ray's object store, which takes it to each node once."""
        if size_of(task) < LARGE:
            return send(task)
        if self._shipped is None or self._shipped[0]() is not task:
            self._shipped = weakref.ref(task, self._unship), ray.put(send(task))
        return self._shipped[1]

    def _unship(self, _: object) -> None:
        self._shipped = None


def _own_folders() -> list[str]:
    # What Ray adds to its workers' paths: they would find, below the same name, whatever is there on their node.
    return ["", os.path.abspath(os.curdir), os.path.dirname(os.path.realpath(sys.argv[0]))]


def _require_none_lost(names: Sequence[str]) -> None:
    if names:
        raise ClusterError(
            f"node {', '.join(names)} is gone: it was in the cluster when this run began, and Ray's daemon on it has "
            "ended, or it is cut off. Run the tests again on the nodes that are left"
        )


def _unusable(error: BaseException) -> str:
    text = str(error)
    if "No module named 'pytest_gpuperf'" in text:
        return "a node of the cluster lacks pytest-gpuperf: install the same version on all nodes"
    hint = "; if it was started without a token, start it again with RAY_AUTH_MODE=token" if "cancelled" in text else ""
    return f"a node of the cluster cannot host ranks: {text.strip().splitlines()[-1]}{hint}"
