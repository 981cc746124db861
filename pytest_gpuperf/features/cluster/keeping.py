"""What the hosts of the nodes keep for the controller: it is made on all of them, and undone on all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from pytest_gpuperf.features.cluster.failures import NodeLostError
from pytest_gpuperf.features.cluster.member import Member, await_long_results
from pytest_gpuperf.repository import CannotRace
from pytest_gpuperf.run.nodes import Kept

_LIMIT = 1800.0  # seconds for a checkout whose large files come over the network, and for what builds it


class KeptOnMembers:
    """What nodes keep, until it is closed."""

    def __init__(self, members: Sequence[Member], number: int) -> None:
        """Keeps nothing.

        Args:
            members: the nodes.
            number: of what is kept.
        """
        self._members = members
        self._number = number
        self.told: Mapping[str, Any] = {}
        """What the controller learned of it, by the node's name."""

    @classmethod
    def make_on_nodes(
        cls, members: Sequence[Member], number: int, make: Callable[..., Kept], arguments: Sequence[object]
    ) -> Self:
        """Calls a function on each node.

        Args:
            members: the nodes.
            number: of what is kept.
            make: the function, which nodes import.
            arguments: of that.

        Raises:
            CannotRace: what the function raised, with the node's name, or a node is lost. Nothing is kept.
        """
        kept = cls(members, number)
        try:
            kept._make(make, arguments)
        except CannotRace as error:
            if kept.close():
                raise CannotRace(f"{error}; a node that is gone may hold a part of what it made for the race") from None
            raise
        except BaseException:
            kept.close()
            raise
        return kept

    def close(self) -> Sequence[str]:
        """Undoes it on all nodes; returns a line for each node on which it is left."""
        members, self._members = self._members, ()
        asked, left = [], []
        for member in members:
            try:
                asked.append((member, member.call("let_go", self._number)))
            except NodeLostError as error:
                left.append(str(error))
        for member, reference in asked:
            try:
                await_long_results(
                    [(member, reference)], _LIMIT
                )  # which may come after what another node did not manage
            except NodeLostError as error:
                left.append(str(error))
        return left

    def _make(self, make: Callable[..., Kept], arguments: Sequence[object]) -> None:
        told: dict[str, Any] = {}
        try:
            asked = [(member, member.call("keep", self._number, make, arguments)) for member in self._members]
            for member, reference in asked:
                try:
                    (told[member.name],) = await_long_results([(member, reference)], _LIMIT)
                except CannotRace as error:
                    raise CannotRace(f"node {member.name}: {error}") from None
        except NodeLostError as error:
            raise CannotRace(f"{error}: run the tests again on the nodes that are left") from None
        self.told = told
