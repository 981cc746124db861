"""Nodes whose GPUs exist only in a test: Ray counts them, the plugin finds them, and ranks run on gloo all the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pytest_gpuperf.features.cluster.cluster import Cluster
from pytest_gpuperf.features.cluster.member import Member
from pytest_gpuperf.features.cluster.membership import Membership
from pytest_gpuperf.features.cluster.watching import ClusterWatch
from pytest_gpuperf.ranks.spec import PoolSpec
from pytest_gpuperf.run.current_test import CurrentTest
from pytest_gpuperf.run.rank_supply import RankSupply
from tests.fake_gpus import machine_of

MEMORY = 4.8e12  # B/s of each GPU


def install(
    patch: pytest.MonkeyPatch,
    models: Mapping[str, str] | None = None,
    fabrics: Mapping[str, str] | None = None,
    shared: bool = False,
) -> None:
    """Gives every node as many GPUs as Ray says that it has, each with an identity of its own.

    Args:
        patch: undoes it.
        models: names of the GPUs by node, if they are no H200.
        fabrics: labels of the network by node, if it is not that of this machine.
        shared: whether all nodes have the same GPUs.
    """
    real_member, real_spec = Membership._make_member, RankSupply.spec

    def member(self: Membership, bundle: int, identity: str, actor: Any, facts: Any) -> Member:
        found = real_member(self, bundle, identity, actor, facts)
        machine = machine_of(found.slots)
        gpus = tuple(
            replace(
                gpu,
                uuid=f"{gpu.uuid}-of-{'all' if shared else found.name}",
                name=(models or {}).get(found.name, gpu.name),
            )
            for gpu in machine.gpus
        )
        told = replace(machine, gpus=gpus, everything=tuple(gpu.uuid for gpu in gpus), memory_told=MEMORY)
        network = (fabrics or {}).get(found.name, found.facts.fabric)
        found.facts = replace(found.facts, machine=told, fabric=network)
        return found

    def spec(self: RankSupply, test: CurrentTest, world_size: int) -> PoolSpec:
        return replace(real_spec(self, test, world_size), gpus=())

    patch.setattr(Membership, "_make_member", member)
    patch.setattr(RankSupply, "spec", spec)
    patch.setattr(Cluster, "watch", lambda self, gpus: ClusterWatch([]))
