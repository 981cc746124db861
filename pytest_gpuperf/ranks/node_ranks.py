"""What a pool needs of the ranks of one machine, and of who starts them there.

``local_ranks`` has both for this machine. A feature has them for the nodes of a cluster, each of which hosts what this
machine would.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_gpuperf.ranks.channel import Parcel
from pytest_gpuperf.ranks.endings import Ending
from pytest_gpuperf.ranks.excerpt import Excerpt
from pytest_gpuperf.ranks.messages import Account, Compare, OpenGroup, Run, Settle
from pytest_gpuperf.ranks.spec import PoolSpec

Request = OpenGroup | Run | Compare | Settle


class NodeRanks(Protocol):
    """The ranks of one pool that one machine has. Ranks go by their numbers in the pool."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids in rank order; empty once the ranks have ended."""
        ...

    def post(self, request: Request, task: Parcel) -> Mapping[int, Ending]:
        """Sends a request to every rank; returns how those ended that were not there any more.

        Raises:
            OSError: there is no memory, or no file descriptor, for a large task.
        """
        ...

    def list_awaited(self) -> Sequence[object]:
        """What becomes readable when there may be news; nothing once all ranks have ended the request."""
        ...

    def news(self, ready: Collection[object]) -> Mapping[int, Ending]:
        """How ranks ended the request since the last call; waits for none.

        Args:
            ready: of what is awaited, and of others, what is readable.
        """
        ...

    def give_up(self, ranks: Collection[int]) -> Callable[[], Mapping[int, Ending]]:
        """Asks ranks that have not ended the request for their stacks; what it returns waits for these."""
        ...

    def ask(self, ranks: Iterable[int], *, whole: bool) -> Callable[[], Mapping[int, Account]]:
        """Asks ranks what they do; what it returns waits for the accounts of those that answer in time.

        Args:
            ranks: which.
            whole: whether with what their flight recorders hold, which takes longer.
        """
        ...

    def listen(self) -> Iterator[tuple[int, str, str]]:
        """All that ranks printed since the last look: rank, stream, text."""
        ...

    def output(self) -> list[tuple[int, str, Excerpt]]:
        """What is to be shown of what ranks printed since the last look: rank, stream, text."""
        ...

    def debug(self, rank: int, run: int, terminal: Callable[[str], str]) -> bool:
        """Opens the debugger on a rank, if it is still there; returns when the user leaves it.

        Args:
            rank: the rank.
            run: the number of the request.
            terminal: prints a text and returns the line that the user types.
        """
        ...

    def leave(self) -> None:
        """Asks the ranks to end, and need not wait; ``close`` follows."""
        ...

    def close(self) -> None:
        """Ends the ranks: asks first, then kills."""
        ...

    def kill(self, *, keep: int | None = None) -> None:
        """Ends the ranks at once, with everything they started.

        Args:
            keep: a rank that stays, and whose files stay.
        """
        ...


@dataclass(frozen=True, slots=True)
class Started:
    """A pool's ranks, which are up."""

    nodes: Sequence[NodeRanks]
    """In the order of their ranks."""
    store_port: int
    """Port of rank 0's store."""


class Nodes(Protocol):
    """The place where ranks are started: this machine, or the nodes of a cluster."""

    def warm_up(self) -> None:
        """Begins whatever takes long before the first ranks can start; waits for nothing."""
        ...

    def renew(self) -> None:
        """Has the next ranks come of a process that none came of before; all ranks have ended."""
        ...

    def start(self, spec: PoolSpec, environ: Mapping[str, str], *, live: bool) -> Started:
        """Starts the ranks of a pool, and waits until they are up.

        Args:
            spec: how many, and on what.
            environ: of the ranks, by ``make_pool_environ``.
            live: whether what they print is to be heard as they print it.

        Raises:
            LaunchError: a rank did not come up; names it, and what it printed.
        """
        ...

    @property
    def would_preload(self) -> tuple[str, ...]:
        """Names of modules that are worth telling of, with ``note_used``."""
        ...

    def note_used(self, modules: Iterable[str]) -> None:
        """Takes note of what a rank had imported in the end: later ones find it there."""
        ...

    def close(self) -> None:
        """Ends what ranks are started from."""
        ...
