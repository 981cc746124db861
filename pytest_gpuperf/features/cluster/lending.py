"""The nodes that a run lends to the runs that it starts: these put hosts of their own beside its hosts."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, MutableMapping
from dataclasses import asdict, dataclass
from typing import Self

from ray import PlacementGroupID
from ray.util.placement_group import PlacementGroup

from pytest_gpuperf.features.cluster.reservation import Reservation

VARIABLE = "GPUPERF_LENT_NODES"
"""Environment variable by which a process has the nodes of the one that started it."""


@dataclass(frozen=True, slots=True)
class LentNode:
    """One of the nodes."""

    name: str
    bundle: int
    """Its number in the placement group."""
    gpus: str | None
    """UUIDs of its GPUs; None if the run uses none."""
    variables: Mapping[str, str]
    """In the environment of ranks."""


@dataclass(frozen=True, slots=True)
class Lent:
    """Nodes that are reserved as long as the process that lends them runs."""

    head: str
    """``host:port`` of the cluster's head."""
    group_id: str
    """Ray's name of the placement group, in hexadecimal digits."""
    reserved: Reservation
    first: tuple[str, ...]
    """Modules that ranks load before all others."""
    nodes: tuple[LentNode, ...]

    @classmethod
    def take_from(cls, environ: MutableMapping[str, str]) -> Self | None:
        """What ``variables`` left there; None if there is nothing. It is removed, so that ranks do not inherit it."""
        text = environ.pop(VARIABLE, None)
        if text is None:
            return None
        read = json.loads(text)
        return cls(
            read["head"],
            read["group_id"],
            Reservation(tuple(read["reserved"]["bundles"]), read["reserved"]["gpus"]),
            tuple(read["first"]),
            tuple(LentNode(**node) for node in read["nodes"]),
        )

    def variables(self) -> Mapping[str, str]:
        """The environment variable that hands them over."""
        return {VARIABLE: json.dumps(asdict(self))}

    def group(self) -> PlacementGroup:
        """The placement group."""
        return PlacementGroup(PlacementGroupID(bytes.fromhex(self.group_id)))

    def list_lost(self, alive: Collection[str]) -> list[str]:
        """The names of nodes that are not among those that are alive."""
        return [node.name for node in self.nodes if node.name not in alive]

    def find_by_bundle(self, bundle: int) -> LentNode:
        """The node with a number."""
        return next(node for node in self.nodes if node.bundle == bundle)
