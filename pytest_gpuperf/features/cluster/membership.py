"""The nodes that a run has: joined when it begins, lost, and replaced when Ray has another."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from pytest_gpuperf.features.cluster.admission import require_alike
from pytest_gpuperf.features.cluster.connection import Connection
from pytest_gpuperf.features.cluster.failures import ClusterError, NodeLostError
from pytest_gpuperf.features.cluster.lending import Lent
from pytest_gpuperf.features.cluster.member import Member
from pytest_gpuperf.features.cluster.node_host import RAY_LEAVES_CHILDREN, NodeHost
from pytest_gpuperf.features.cluster.reservation import Reservation
from pytest_gpuperf.features.cluster.wire import NodeFacts
from pytest_gpuperf.hardware.machine import Machine

JOIN_TIMEOUT = 120.0  # seconds for Ray to place what is reserved, and for its workers to start
HEAL = 2.0  # times as long as a node has to answer, a test waits for one in place of a lost one that it needs
_LOOK = 2.0  # seconds between looks at whether a node has died that the run waits for
_AGAIN = 0.2  # seconds before Ray is asked for a node again


class Membership:
    """The nodes of a run. One that is lost is replaced when Ray has another."""

    def __init__(
        self,
        connection: Connection,
        group: Any,
        reserved: Reservation,
        preload: tuple[Sequence[str], Mapping[str, str]],
        patience: float,
        unlike: bool,
        lent: Lent | None,
    ) -> None:
        """Has no nodes yet.

        Args:
            connection: to Ray.
            group: the placement group of what is reserved.
            reserved: how many nodes, and what of each.
            preload: modules that ranks find loaded, as ``ForkserverClient`` takes them.
            patience: seconds in which a node must answer; one that does not is lost.
            unlike: whether nodes may differ in hardware.
            lent: the nodes of the run that started this one; None to have those of the group.
        """
        self.members: list[Member] = []
        """The nodes, the one of rank 0 first."""
        self.losses: list[str] = []
        """How nodes were lost, in the order of their losses."""
        self.replaced = 0
        """How many nodes came in place of lost ones."""
        self._connection = connection
        self._group = group
        self._reserved = reserved
        self._preload = preload
        self._patience = patience
        self._unlike = unlike
        self._lent = lent
        self._coming: dict[int, tuple[Any, Any, Any]] = {}
        """Actors in place of lost ones, by bundle: they start when Ray has a node for it."""
        self._heal_timeout = 0.0
        """Seconds that the next test waits for a node. After a loss one test waits; others would wait in vain."""

    @property
    def living(self) -> list[Member]:
        """The nodes that are not lost."""
        return [member for member in self.members if not member.lost]

    @property
    def machines(self) -> dict[str, Machine]:
        """The GPUs of each node, by the node's name."""
        return {member.name: replace(member.facts.machine, fabric=member.facts.fabric) for member in self.members}

    def join(self) -> None:
        """Starts an actor on each node.

        Raises:
            ClusterError: Ray cannot give these nodes, or they are not alike in software.
        """
        until = time.monotonic() + JOIN_TIMEOUT
        while self._lent is None and not self._group.wait(_LOOK):
            require_none_lost(self._connection.list_died())
            if time.monotonic() > until:
                raise ClusterError(
                    f"Ray did not give the run {self._reserved} within {JOIN_TIMEOUT:g} s: others use them, as "
                    "`ray status` shows"
                )
        bundles = (
            range(len(self._reserved.bundles)) if self._lent is None else [node.bundle for node in self._lent.nodes]
        )
        starting = [(bundle, self._start_host(bundle)) for bundle in bundles]
        for bundle, (identity, actor, facts) in starting:
            try:
                while (
                    self._lent is not None and time.monotonic() < until and not ray.wait([identity], timeout=_LOOK)[0]
                ):
                    require_none_lost(self._connection.list_died())  # Ray would look for another node in its place
                self.members.append(self._make_member(bundle, ray.get(identity, timeout=JOIN_TIMEOUT), actor, facts))
            except ray.exceptions.RayError as error:
                raise ClusterError(_describe_unusable(error)) from None
        # By kind before name: on unlike nodes too, the key then says on which GPUs a few ranks are.
        self.members.sort(key=lambda member: (-member.slots, member.facts.machine.key, member.name))
        self._require_alike()

    def look(self) -> None:
        """Finds out which nodes are lost, and takes in what Ray gave in their place."""
        since = time.monotonic()
        asked = [(member, member.call("clock")) for member in self.living]
        for member, reference in asked:
            with contextlib.suppress(NodeLostError):
                member.result(reference, since=since)
        if ended := self._describe_dead_daemon():
            for member in self.living:  # Ray is about to end their hosts
                member.lose(ended)
        self.heal(wait=False)

    def heal(self, *, wait: bool) -> None:
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
        if (lost or self._coming) and self.cut_off():
            self._coming.clear()
            return
        for member in lost:
            self._coming[member.bundle] = self._start_host(member.bundle)
        until = time.monotonic() + (self._heal_timeout if wait else 0.0)
        if wait:
            self._heal_timeout = 0.0
        while self._coming:
            self._take_in(max(0.0, until - time.monotonic()))
            if time.monotonic() >= until:
                return

    def give_back(self) -> None:
        """Ends what nodes start ranks from, and gives the nodes back to Ray."""
        since = time.monotonic()
        closing = [(member, member.call("close")) for member in self.living]
        for member, reference in closing:
            try:
                member.result(reference, since=since)
            except NodeLostError:
                continue
            ray.kill(member.actor)
        for _, actor, _ in self._coming.values():
            ray.kill(actor)

    def report(self) -> list[str]:
        """Return the lines of the run's summary: the losses, and how many nodes are left; none if none was lost."""
        losses = [*self.losses, *(member.lost for member in self.members if member.lost)]
        if not losses:
            return []
        left = f"the run began with {len(self._reserved.bundles)} nodes and ended with {len(self.living)}"
        return [f"cluster: {line}" for line in dict.fromkeys(filter(None, (*losses, self.cut_off(), left)))]

    def cut_off(self) -> str:
        """Why no node can come any more; empty if one can."""
        return self._connection.cut_off(self._patience)

    def add_cause(self, text: str) -> str:
        """Returns the text, and why no node can come any more if it does not say so."""
        cause = self.cut_off()
        return text if cause in text else f"{text}; {cause}"

    def _describe_dead_daemon(self) -> str:
        return self._connection.daemonless(self._patience)

    def _require_alike(self) -> None:
        require_alike(self.members, self.machines, gpus=self._reserved.gpus, unlike=self._unlike)

    def _start_host(self, bundle: int) -> tuple[Any, Any, Any]:
        """Start an actor on a bundle; return the future of its node, the actor, and the future of the node's facts."""
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        lent = None if self._lent is None else self._lent.find_by_bundle(bundle)
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

    def _make_member(self, bundle: int, identity: str, actor: Any, facts: Any) -> Member:
        node = self._connection.node(identity)
        told: NodeFacts = ray.get(facts, timeout=JOIN_TIMEOUT)
        slots = self._connection.slots(identity, self._reserved.gpus, self._reserved.bundles[bundle])
        return Member(
            node.name,
            node.address,
            bundle,
            slots,
            actor,
            told,
            self._patience,
            self._describe_dead_daemon,
            self.cut_off,
        )

    def _take_in(self, timeout: float) -> None:
        for bundle, (identity, actor, facts) in list(self._coming.items()):
            ready, _ = ray.wait([facts], timeout=min(timeout, 1.0))
            if not ready:
                continue
            del self._coming[bundle]
            try:
                self.members.append(self._make_member(bundle, ray.get(identity, timeout=JOIN_TIMEOUT), actor, facts))
                self.replaced += 1
                self._require_alike()
            except ray.exceptions.RayError:
                time.sleep(_AGAIN)
                if not self.cut_off():
                    self._coming[bundle] = self._start_host(bundle)
            except ClusterError as error:
                self.losses.append(str(error))
                ray.kill(self.members.pop().actor)


def require_none_lost(names: Sequence[str]) -> None:
    """Raises ClusterError if a node is lost before the run has begun."""
    if names:
        raise ClusterError(
            f"node {', '.join(names)} is gone: it was in the cluster when this run began, and Ray's daemon on it has "
            "ended, or it is cut off. Run the tests again on the nodes that are left"
        )


def _describe_unusable(error: BaseException) -> str:
    text = str(error)
    if "No module named 'pytest_gpuperf'" in text:
        return "a node of the cluster lacks pytest-gpuperf: install the same version on all nodes"
    hint = "; if it was started without a token, start it again with RAY_AUTH_MODE=token" if "cancelled" in text else ""
    return f"a node of the cluster cannot host ranks: {text.strip().splitlines()[-1]}{hint}"
