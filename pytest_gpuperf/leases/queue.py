"""Those who wait, in the order in which they came.

Each one keeps a ticket: a file that it holds locked, so that it counts as long as its process lives, and that names
what it may be given. Nobody takes a resource that an earlier ticket may be given. So:

- A big request is not starved. While it waits, nothing that it could use goes to later ones, and what is released adds
  up to what it wants. The cost is head-of-line blocking: resources stay idle that a later, smaller request could have
  used meanwhile, and a request waits behind all earlier ones that share a resource with it, though not enough for
  them is free.
- Requests without a resource in common never wait for each other, except through one that was there before and shares
  one with each: 3 behind {2, 3} behind {1, 2}.
- A perf test is not starved by tests that share GPUs: those that come later wait behind it.
- There is no deadlock. The earliest of all who wait has nobody to wait for but owners, and it holds nothing while it
  waits.

A single lock at the door would make disjoint requests wait for one another. One for each resource, taken in order,
would not, but flock without waiting knows no order among those at a door, so a big request could lose there again and
again to small ones.
"""

import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pytest_gpuperf.leases.claimant import Claimant, parse_json, parse_names
from pytest_gpuperf.leases.folder import Folder
from pytest_gpuperf.leases.notices import Notices

SUFFIX = ".waiting"


@dataclass(frozen=True, slots=True)
class Ticket:
    """One request that waits."""

    name: str
    """Sorts by age."""
    who: Claimant
    candidates: frozenset[str]
    count: int
    alone: bool
    """Whether nobody else is to be there meanwhile, idle or not."""


class Queue:
    """The tickets of one folder."""

    def __init__(self, folder: Folder) -> None:
        self._notices = Notices(folder, SUFFIX)

    @contextmanager
    def ticket(self, holder: str, candidates: Iterable[str], count: int, *, alone: bool = False) -> Iterator[Ticket]:
        """Stands in the queue.

        Raises:
            LeaseError: Where the ticket cannot be written.
        """
        # The monotonic clock is one for all processes of the machine, and no correction sets it back. One who reads the
        # clock first and writes last can find a later one ahead for a moment; nothing is given twice for that.
        stem = f"{time.monotonic_ns():020d}-{os.getpid()}-{secrets.token_hex(4)}"
        ticket = Ticket(stem + SUFFIX, Claimant.of_this_process(holder), frozenset(candidates), count, alone)
        notice = self._notices.post(stem, _format_ticket(ticket))
        try:
            yield ticket
        finally:
            notice.remove()

    def ahead(self, candidates: Iterable[str], own: Ticket | None = None) -> Ticket | None:
        """The first ticket that shares a resource with the candidates and is older than one's own, if one has any.

        Raises:
            LeaseError: Where the folder cannot be read.
        """
        return next(self._iterate_wanting(candidates, own), None)

    def is_wanted_alone(self, resources: Iterable[str]) -> bool:
        """Whether somebody waits to be alone on one of these.

        Raises:
            LeaseError: Where the folder cannot be read.
        """
        return any(ticket.alone for ticket in self._iterate_wanting(resources))

    def _iterate_wanting(self, resources: Iterable[str], own: Ticket | None = None) -> Iterator[Ticket]:
        wanted = frozenset(resources)
        for name, line in self._notices.living(None if own is None else own.name):
            ticket = _parse_ticket(name, line)
            if ticket is not None and not ticket.candidates.isdisjoint(wanted):
                yield ticket


def _format_ticket(ticket: Ticket) -> str:
    return json.dumps(
        {
            **ticket.who.to_json(),
            "candidates": sorted(ticket.candidates),
            "count": ticket.count,
            "alone": ticket.alone,
        }
    )


def _parse_ticket(name: str, line: str) -> Ticket | None:
    data = parse_json(line)
    who = None if data is None else Claimant.from_json(data)
    if data is None or who is None:
        return None
    # A ticket that no process of this package writes keeps nobody waiting, and nothing of it is printed.
    candidates, count = parse_names(data.get("candidates")), data.get("count")
    if candidates is None or not isinstance(count, int) or not 1 <= count <= len(candidates):
        return None
    return Ticket(name, who, candidates, count, data.get("alone") is True)
