"""Leases of the run's GPUs on all of its nodes, from the controller: each node's host holds those of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from pytest_gpuperf.features.cluster.failures import NodeLostError
from pytest_gpuperf.features.cluster.member import Member
from pytest_gpuperf.leases.folder import LeaseError
from pytest_gpuperf.leases.memory import RETURN_SECONDS

_LISTENING = 0.5  # seconds between questions to a node that waits for a lease


class ClusterLeasing:
    """Leases for one test after another, as ``leasing.Leasing`` has them of one machine.

    A test has all GPUs of the run, because Ray gives them to no other. Cores are not leased.
    """

    def __init__(
        self,
        members: Callable[[], Sequence[Member]],
        folder: Path,
        *,
        timeout: float,
        tell: Callable[[str], None],
        leave: Callable[[], None],
    ) -> None:
        """Holds none.

        Args:
            members: returns the nodes that are not lost.
            folder: where all processes of a node keep their leases.
            timeout: seconds to wait for the leases of a node.
            tell: told who is waited for.
            leave: ends the run's idle ranks.
        """
        self._members = members
        self._folder = folder
        self._timeout = timeout
        self._tell = tell
        self._leave = leave
        self._asked: dict[Member, frozenset[str]] = {}
        """The nodes whose hosts may hold a lease, or have idle ranks noted, and their GPUs."""
        self._alone: bool | None = None
        """How the GPUs are held; None if they are not."""
        self._staying: frozenset[str] = frozenset()

    def gpus(self, count: int, holder: str, warm: Sequence[Collection[str]] = ()) -> tuple[str, ...]:
        """Takes all GPUs of the run, beside idle ranks of other runs; returns the first ones.

        Raises:
            LeaseError: others held some for longer than the run waits; names the node.
        """
        return self._take(holder, alone=False)[:count]

    def machine(self, holder: str) -> tuple[str, ...]:
        """Leases all GPUs of the nodes, so that nothing else is on them; returns those of the run.

        Raises:
            LeaseError: others held some for longer than the run waits; names the node.
        """
        return self._take(holder, alone=True)

    def cores(self, count: int, holder: str) -> None:
        """Nothing to do."""

    def memory_is_scarce(self, gpus: Sequence[str]) -> bool:
        """Unknown, and so taken for scarce: ranks that rest give their memory back."""
        return bool(gpus)

    def release(self, *, staying: Collection[str] = (), await_memory: bool = False) -> None:
        """Lets go of what is held.

        Args:
            staying: the GPUs on which processes stay.
            await_memory: whether processes that were on the other GPUs may have ended.
        """
        if self._alone is None and self._staying == frozenset(staying):
            return
        self._alone, self._staying = None, frozenset(staying)
        since, asked = time.monotonic(), []
        for member, gpus in self._asked.items():
            if not member.lost:
                asked.append((member, member.call("release", sorted(self._staying & gpus), await_memory)))
        for member, reference in asked:
            with contextlib.suppress(NodeLostError):
                patience = member.patience + RETURN_SECONDS
                self._tell_of_memory(member, member.result(reference, patience, since=since))

    def close(self) -> None:
        """Nothing to do: a node's host lets go of them when it ends, with the ranks."""

    def is_wanted_alone(self, gpus: Collection[str]) -> bool:
        """Whether another process of a node waits to be alone on one of these."""
        if not gpus:
            return False
        found, since = False, time.monotonic()
        for member, reference in [(one, one.call("is_wanted_alone")) for one in self._asked if not one.lost]:
            with contextlib.suppress(NodeLostError):
                found = bool(member.result(reference, since=since)) or found
        return found

    def make_way(self) -> None:
        """Nothing to do: before each release it is asked who wants to be alone."""

    def _take(self, holder: str, *, alone: bool) -> tuple[str, ...]:
        wanted = list_wanted(self._members(), alone=alone)
        if self._alone is not alone:
            if self._alone is not None:
                self._make_room()
            self._alone = alone
            self._asked |= {member: frozenset(gpus).union(self._asked.get(member, ())) for member, gpus in wanted}
            try:
                if not self._have_at_once(wanted, holder, alone):
                    # Who waits holds nothing, and has no idle ranks in another's way; who holds some waits for
                    # those of nodes that come later: so two runs never wait for each other.
                    self._make_room()
                    self._alone = alone
                    for member, gpus in wanted:
                        self._await(member, gpus, holder, alone)
            except BaseException:
                self._make_room()
                raise
        return tuple(uuid for member in self._members() for uuid in member.facts.machine.gpu_uuids)

    def _make_room(self) -> None:
        self._leave()
        self.release(await_memory=True)

    def _have_at_once(self, wanted: Sequence[tuple[Member, Sequence[str]]], holder: str, alone: bool) -> bool:
        since = time.monotonic()
        asked = [(member, self._lease(member, gpus, holder, alone, 0.0)) for member, gpus in wanted]
        had = True
        for member, reference in asked:
            patience = member.patience + RETURN_SECONDS
            try:
                self._tell_of_memory(member, member.result(reference, patience, since=since))
            except LeaseError:
                had = False
            except NodeLostError:  # the ranks are put elsewhere, or say so
                continue
        return had

    def _await(self, member: Member, gpus: Sequence[str], holder: str, alone: bool) -> None:
        try:
            reference = self._lease(member, gpus, holder, alone, self._timeout)
            try:
                while not member.await_answer(reference, _LISTENING):
                    if said := member.result(member.call("waits_for", wake=True)):
                        self._tell(f"node {member.name}: {said}")
            except BaseException:
                member.call("give_up_waiting", wake=True)
                raise
            self._tell_of_memory(member, member.result(reference))
        except NodeLostError:
            return
        except LeaseError as error:
            raise LeaseError(f"node {member.name}: {error}") from None

    def _lease(self, member: Member, gpus: Sequence[str], holder: str, alone: bool, timeout: float) -> object:
        return member.call("lease", str(self._folder), list(gpus), holder, alone, timeout)

    def _tell_of_memory(self, member: Member, gpus: Sequence[str]) -> None:
        if gpus:
            self._tell(f"node {member.name}: memory of ranks that have ended did not come back on {', '.join(gpus)}")


def list_wanted(members: Sequence[Member], *, alone: bool) -> list[tuple[Member, tuple[str, ...]]]:
    """The GPUs that nodes lease for a test, in an order that is the same for all runs.

    Nodes that are one machine have the same GPUs: the first of them leases for all, because who waits there is to hold
    none of them.

    Args:
        members: the nodes.
        alone: whether all GPUs of the nodes are wanted, or those of the run.
    """
    machines: list[tuple[Member, set[str], list[str]]] = []
    for member in sorted(members, key=lambda member: (member.address, member.name)):
        own = member.facts.machine.gpu_uuids
        everything = {*own, *member.facts.machine.everything}
        for _, there, wanted in machines:
            if there & everything:
                wanted += [uuid for uuid in own if uuid not in wanted]  # nodes of one machine may share a GPU
                break
        else:
            machines.append((member, everything, list(own)))
    return [
        (first, (*wanted, *sorted(there - {*wanted})) if alone else tuple(wanted)) for first, there, wanted in machines
    ]
