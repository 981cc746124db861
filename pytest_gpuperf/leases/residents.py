"""Processes that stay on GPUs between their leases: idle ranks, which compute nothing and yet are there.

They are in nobody's way but that of one who wants a GPU without anybody beside it, to measure. One stays where it has
held a lease, and says so before it releases that; so nobody comes to stay on a GPU while it is leased to another.
"""

import json
import os
import secrets
from collections.abc import Collection
from dataclasses import dataclass

from pytest_gpuperf.leases.claimant import Claimant, json_object, names
from pytest_gpuperf.leases.folder import Folder
from pytest_gpuperf.leases.notices import Notice, Notices

SUFFIX = ".staying"


@dataclass(frozen=True, slots=True)
class Resident:
    """One process that stays."""

    who: Claimant
    resources: frozenset[str]


class Residents:
    """The processes that stay on GPUs, as one folder has them."""

    def __init__(self, folder: Folder) -> None:
        self._notices = Notices(folder, SUFFIX)
        self._own: Notice | None = None
        self.resources: frozenset[str] = frozenset()
        """The resources on which this process stays."""

    def stay(self, resources: Collection[str], holder: str) -> None:
        """Says that this process stays on these resources, and on no others any more.

        Raises:
            LeaseError: Where it cannot be written.
        """
        if self.resources == frozenset(resources):
            return
        notice = None
        if resources:
            line = json.dumps({**Claimant.of_this_process(holder).to_json(), "resources": sorted(resources)})
            notice = self._notices.post(f"{os.getpid()}-{secrets.token_hex(8)}", line)
        before, self._own, self.resources = self._own, notice, frozenset(resources)
        if before is not None:
            before.remove()

    def others(self, resources: Collection[str]) -> list[Resident]:
        """The other processes that stay on one of these.

        Raises:
            LeaseError: Where the folder cannot be read.
        """
        found = []
        for name, line in self._notices.living():
            resident = None if self._own is not None and name == self._own.name else _from_line(line)
            if resident is not None and not resident.resources.isdisjoint(resources):
                found.append(resident)
        return found


def _from_line(line: str) -> Resident | None:
    data = json_object(line)
    who = None if data is None else Claimant.from_json(data)
    resources = None if data is None else names(data.get("resources"))
    return None if who is None or resources is None else Resident(who, resources)
