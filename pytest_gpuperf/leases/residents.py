"""Processes that are on GPUs without holding them alone: their tests run there, or their ranks stay there idle.

A resident shares its GPUs with the tests of its own run, and with idle ranks of all runs. One who wants a GPU alone
waits until no other resident is left. A process comes to a GPU only under the lock of the GPU's file. So nobody comes
while another holds it, and one look at the notices under all locks is enough.
"""

import json
import os
import secrets
from collections.abc import Collection
from dataclasses import dataclass

from pytest_gpuperf.leases.claimant import Claimant, Json, parse_json, parse_names
from pytest_gpuperf.leases.folder import Folder
from pytest_gpuperf.leases.notices import Notice, Notices

SUFFIX = ".staying"


@dataclass(frozen=True, slots=True)
class Resident:
    """One process that is on GPUs."""

    who: Claimant
    run: str
    """The run that it belongs to: workers of one run have the same."""
    resources: frozenset[str]
    """Where it is, idle or not."""
    running: frozenset[str]
    """Where its test runs now, among these."""


class Residents:
    """The processes that are on GPUs, as one folder has them."""

    def __init__(self, folder: Folder, run: str) -> None:
        self._notices = Notices(folder, SUFFIX)
        self._run = run
        self._own: Notice | None = None
        self._idle: frozenset[str] = frozenset()
        self._running: frozenset[str] = frozenset()

    @property
    def resources(self) -> frozenset[str]:
        """The resources on which this process is, idle or not."""
        return self._idle | self._running

    def begin(self, resources: Collection[str], holder: str) -> None:
        """Says that a test runs on these resources; idle ranks stay where they are.

        Raises:
            LeaseError: Where it cannot be written.
        """
        self._say(self._idle, frozenset(resources), holder)

    def stay(self, resources: Collection[str], holder: str) -> None:
        """Says that no test runs any more, and that idle ranks are on these resources, and on no others.

        Raises:
            LeaseError: Where it cannot be written.
        """
        self._say(frozenset(resources), frozenset(), holder)

    def end(self, holder: str) -> None:
        """Says that no test runs any more; in a forked child it does nothing.

        Raises:
            LeaseError: Where it cannot be written.
        """
        if self._own is not None and self._own.is_ours:
            self.stay(self._idle, holder)

    def others(self, resources: Collection[str]) -> list[Resident]:
        """The other processes that are on one of these.

        Raises:
            LeaseError: Where the folder cannot be read.
        """
        while True:
            before = self._notices.names()
            found = []
            for name, line in self._notices.living():
                resident = None if self._own is not None and name == self._own.name else _parse_resident(line)
                if resident is not None and not resident.resources.isdisjoint(resources):
                    found.append(resident)
            # Who changes its notice posts a new one and removes the old one. One look can come too early for the one
            # and too late for the other.
            if self._notices.names() == before:
                return found

    def _say(self, idle: frozenset[str], running: frozenset[str], holder: str) -> None:
        if (idle, running) == (self._idle, self._running):
            return
        notice = None
        if idle | running:
            line = {"run": self._run, "resources": sorted(idle | running), "running": sorted(running)}
            record = json.dumps({**Claimant.of_this_process(holder).to_json(), **line})
            notice = self._notices.post(f"{os.getpid()}-{secrets.token_hex(8)}", record)
        before, self._own, self._idle, self._running = self._own, notice, idle, running
        if before is not None:
            before.remove()


def _parse_resident(line: str) -> Resident | None:
    data = parse_json(line)
    who = None if data is None else Claimant.from_json(data)
    if data is None or who is None:
        return None
    resources, running, run = parse_names(data.get("resources")), _parse_running(data), data.get("run")
    if resources is None or running is None or not running <= resources or not isinstance(run, str):
        return None
    return Resident(who, run, resources, running)


def _parse_running(data: Json) -> frozenset[str] | None:
    return frozenset() if data.get("running") == [] else parse_names(data.get("running"))
