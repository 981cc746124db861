"""The holder of the ranks of a run: what ``Session`` needs of it, and no more.

``pools.Pools`` does it for the GPUs and cores of this machine. Another implementation may hold ranks of other machines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pytest_gpuperf.ranks.channel import Parcel
from pytest_gpuperf.ranks.excerpt import Excerpt
from pytest_gpuperf.ranks.failures import RankDied
from pytest_gpuperf.ranks.postmortem import PostMortem
from pytest_gpuperf.ranks.scene import Scene
from pytest_gpuperf.ranks.spec import PoolSpec


class HostedRanks(Protocol):
    """Live ranks with a process group."""

    @property
    def spec(self) -> PoolSpec:
        """What they are made of."""
        ...

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids in rank order."""
        ...

    @property
    def failure(self) -> PostMortem | None:
        """How the last run ended, if it failed."""
        ...

    def run(
        self,
        task: Parcel,
        *,
        program: str,
        seed: int,
        timeout: float,
        outlives_deaths: bool = False,
        scene: Scene | None = None,
    ) -> list[Parcel]:
        """Runs the task on every rank and returns their results in rank order.

        Raises:
            BaseException: what the program raised on the rank that failed first, or a RankError.
        """
        ...


class RankHost(Protocol):
    """Ranks by what they are made of; those that are not there yet are started when they are asked for."""

    def warm_up(self) -> None:
        """Begins whatever takes long before the first ranks can start; waits for nothing."""
        ...

    def get(self, spec: PoolSpec, group: str, timeout: float, environ: Mapping[str, str] | None = None) -> HostedRanks:
        """Ranks that are made of this, with a process group of this name.

        Args:
            spec: what they are made of.
            group: the name.
            timeout: seconds for opening it, and the least that its collectives must bear with.
            environ: the environment that ranks inherit; None for this process's own.

        Raises:
            RankError: ranks did not come up, or fresh ones could not open the group.
        """
        ...

    def settle(self) -> list[str]:
        """Closes what ranks used since the last call have open; returns what was left behind otherwise, in words.

        Raises:
            RankDied: a rank died after its last run.
        """
        ...

    def rest(self, but: PoolSpec | None = None) -> None:
        """Has ranks give up their communicators and device memory; the processes stay.

        Args:
            but: those that keep them.
        """
        ...

    def retire(self, spec: PoolSpec, *, wait: bool = True) -> None:
        """Ends the ranks that are made of this, if there are any.

        Args:
            spec: what they are made of.
            wait: whether they are gone when this returns; otherwise they are when ``get`` does.
        """
        ...

    def retire_with(self, environ: tuple[tuple[str, str], ...], *, wait: bool = True) -> None:
        """Ends all ranks whose test set these variables for them; ``wait`` as for ``retire``."""
        ...

    def retire_owned(self, *, but: str) -> None:
        """Ends all ranks that belong to the tests of one file, except those of the file ``but``."""
        ...

    def retire_all(self, but: PoolSpec | None = None, *, wait: bool = True) -> None:
        """Ends all ranks; the next ones asked for are fresh.

        Args:
            but: those that stay.
            wait: as for ``retire``.
        """
        ...

    def renew(self) -> None:
        """Has the next ranks come of a process that none came of before, with other addresses; all ranks have ended."""
        ...

    def take_death(self) -> RankDied | None:
        """The death of a rank that had no test at hand, since the last call."""
        ...

    @property
    def failures(self) -> Sequence[PostMortem]:
        """How the last requests ended of those ranks whose last request failed."""
        ...

    @property
    def gpus(self) -> frozenset[str]:
        """The GPUs on which there are processes."""
        ...

    def warm(self, world_size: int) -> Sequence[tuple[str, ...]]:
        """The GPUs of ranks that are there, for each world of this size; the one used last comes first."""
        ...

    def output(self) -> Sequence[tuple[PoolSpec, int, str, Excerpt]]:
        """What ranks printed since the last call: what they are made of, rank, stream, text."""
        ...

    def debug(self, failure: PostMortem, terminal: Callable[[str], str]) -> bool:
        """Opens the debugger on the rank that failed, if it is still there; returns whether it was."""
        ...

    def close(self) -> None:
        """Ends all ranks, and what they are started from."""
        ...
