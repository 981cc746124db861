"""Nodes that are lost while they make something to keep."""

from __future__ import annotations

import pytest

from pytest_gpuperf.features.cluster.failures import NodeLostError
from pytest_gpuperf.features.cluster.keeping import KeptOnMembers
from pytest_gpuperf.repository import CannotRace


class Gone:
    """Stands for a member whose node is lost."""

    name = "gpu-b"

    def call(self, what: str, *arguments: object) -> object:
        """Fails as Ray does."""
        raise NodeLostError("node gpu-b is gone: it was cut off")


def test_what_a_lost_node_may_hold_is_said() -> None:
    with pytest.raises(CannotRace) as raised:
        KeptOnMembers.make_on_nodes([Gone()], 0, lambda: None, ())  # type: ignore[list-item, arg-type, return-value]
    assert str(raised.value) == (
        "node gpu-b is gone: it was cut off: run the tests again on the nodes that are left; a node that is gone may "
        "hold a part of what it made for the race"
    )
