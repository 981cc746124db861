"""Ranks that wait to reach a store which nobody opens: under a launcher, torch makes every rank a client of its store.

A program may start a server late, in a thread or a process of its own. So ranks are suspected only if none of them, the
returned ones included, has threads of the program or child processes, and if all that have not returned have waited for
the whole grace. :func:`find_unserved` runs in the pytest process, :func:`find_sought_store` on a rank.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import FrameType

from pytest_gpuperf.ranks.collectives import say_ranks
from pytest_gpuperf.ranks.messages import Account
from pytest_gpuperf.torch_internals import store_address

_PATIENCE = 0.2  # seconds for a connection; on loopback it is refused at once


@dataclass(frozen=True, slots=True)
class Unserved:
    """Addresses of stores at which nobody listens, and the ranks that wait there."""

    waiting: Mapping[str, Collection[int]]

    def __str__(self) -> str:
        return "; ".join(
            f"{say_ranks(sorted(ranks))} {'waits' if len(ranks) == 1 else 'wait'} for a store at {address}, "
            "where nobody listens"
            for address, ranks in self.waiting.items()
        )


def find_unserved(accounts: Mapping[int, Account], still: Collection[int], waiting: Collection[int]) -> Unserved | None:
    """Return the stores that can never be reached; None if there is none, or if one may still be opened.

    Args:
        accounts: what the ranks tell.
        still: ranks that have not moved for long enough.
        waiting: ranks that have not returned from the program.
    """
    if not waiting or any(account.threads or account.children for account in accounts.values()):
        return None
    found: dict[str, list[int]] = {}
    for rank in waiting:
        if rank not in still or rank not in accounts or not accounts[rank].sought:
            return None
        found.setdefault(accounts[rank].sought, []).append(rank)
    return Unserved(found)


def find_sought_store(frame: FrameType) -> str:
    """Return the address of the store that a thread waits to reach while nobody listens there; empty if it does not.

    Args:
        frame: the thread's innermost one.
    """
    address = store_address(frame)
    if address is None:
        return ""
    host, port = address
    try:
        socket.create_connection((host, port), _PATIENCE).close()
    except ConnectionRefusedError:
        return f"{host}:{port}"
    except (OSError, OverflowError, TypeError, ValueError):  # another machine's, whose answers tell nothing
        return ""
    return ""
