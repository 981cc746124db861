"""The warm pools of one pytest process, and when each of them has to go."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from pytest_gpuperf.ranks.excerpt import Excerpt
from pytest_gpuperf.ranks.failures import LaunchError, RankDied
from pytest_gpuperf.ranks.node_ranks import Nodes
from pytest_gpuperf.ranks.os_internals import read_undecoded
from pytest_gpuperf.ranks.pool import GRACE, Listener, Pool
from pytest_gpuperf.ranks.postmortem import PostMortem
from pytest_gpuperf.ranks.spec import CURRENT_TEST, PoolSpec, make_pool_environ

MOST_OF_A_SIZE = 2  # pools of one world size, on different GPUs
LAST_WORDS = 3  # lines that tell of a death


class Pools:
    """Live pools by what they are made of. Ranks are started when first asked for."""

    def __init__(
        self,
        nodes: Nodes,
        *,
        grace: float = GRACE,
        delays: int | None = None,
        listener: Listener | None = None,
        debug: bool = False,
    ) -> None:
        self._nodes = nodes
        self._grace = grace
        self._delays = delays
        self._listener = listener
        self._debug = debug
        self._pools: dict[PoolSpec, Pool] = {}
        self._leaving: list[Pool] = []
        """Told to end; their processes may still be there."""
        self._used: set[PoolSpec] = set()
        self._death: RankDied | None = None
        self._undecoded: dict[object, object] = {}
        self._environ: dict[str, str] = {}
        """This process's own environment, as long as it is what is kept undecoded."""

    def warm_up(self) -> None:
        """Has what ranks are forked from begin to start; waits for nothing."""
        self._nodes.warm_up()

    def renew(self) -> None:
        """Has the next ranks come of a process that none came of before, with other addresses; all ranks have ended."""
        self._nodes.renew()

    def get(self, spec: PoolSpec, group: str, timeout: float, environ: Mapping[str, str] | None = None) -> Pool:
        """The pool with a process group of this name; whatever is not there yet is started.

        Ranks that an earlier test left unable to open another group are replaced: this test is not to blame. Retired
        ranks that nobody has waited for end while new ones start, and are gone when this returns.

        Args:
            spec: what the pool is made of.
            group: name of the group.
            timeout: seconds for opening it, and the least that its collectives must bear with.
            environ: the environment that ranks inherit; None for this process's own.

        Raises:
            RankError: ranks did not come up, or fresh ones could not open the group.
        """
        environ = self._own_environ() if environ is None else environ
        self._used.add(spec)
        pool = self._pools.pop(spec, None)
        if pool is not None:
            self._pools[spec] = pool  # at the end: what was used last
        self._retire_surplus(spec)
        if pool is not None and pool.alive and pool.environ != make_pool_environ(spec, environ):
            pool.close()  # much is read from the environment once in a process's life
        if pool is not None and pool.alive:
            self._see_off()
            try:
                pool.open_group(group, timeout)
            except RankDied as error:  # between two tests: neither failed by it
                self._remember(pool, error)
                pool.kill()
            except Exception:  # whatever a group broken by an earlier test may raise
                pool.kill()
            else:
                return pool
        if pool is not None:
            pool.kill()  # a rank may be held for the debugger
        try:
            pool = self._start(spec, environ)
        except LaunchError:
            if not self._leaving:
                raise
            self._see_off()  # they had the GPUs' memory, or a GPU that takes no second process
            pool = self._start(spec, environ)
        self._pools[spec] = pool
        self._see_off()
        pool.open_group(group, timeout)
        return pool

    def _start(self, spec: PoolSpec, environ: Mapping[str, str]) -> Pool:
        return Pool(
            self._nodes,
            spec,
            environ,
            grace=self._grace,
            delays=self._delays,
            listener=self._listener,
            debug=self._debug,
        )

    def _own_environ(self) -> Mapping[str, str]:
        undecoded = read_undecoded(but=CURRENT_TEST)
        if undecoded != self._undecoded:
            self._undecoded, self._environ = undecoded, dict(os.environ)
        return self._environ

    def take_death(self) -> RankDied | None:
        """Return and forget the death of a rank after its last test; what its pool printed last is noted on it."""
        death, self._death = self._death, None
        return death

    def _remember(self, pool: Pool, death: RankDied) -> None:
        self._death = death
        for rank, stream, text in pool.output():  # C++ says on stderr why it ends a process
            lines = "\n".join(str(text).strip().splitlines()[-LAST_WORDS:])
            death.add_note(f"{stream} of rank {rank} ends with:\n{lines}")

    def output(self) -> list[tuple[PoolSpec, int, str, Excerpt]]:
        """What ranks printed since the last call: pool, rank, stream, text."""
        return [(spec, *printed) for spec, pool in self._pools.items() for printed in pool.output()]

    def settle(self) -> list[str]:
        """Closes what the pools used since the last call have open; what was left behind otherwise, in words.

        Raises:
            RankDied: a rank did, after its last run; what else there is to tell are notes on it.
        """
        used, self._used = self._used, set()
        left: list[str] = []
        deaths: list[RankDied] = []
        for pool in [pool for spec, pool in self._pools.items() if spec in used]:
            try:
                left += pool.settle()
            except RankDied as error:
                deaths.append(error)
        if deaths:
            first, *others = deaths
            for note in [*map(str, others), *(f"left behind besides: {text}" for text in left)]:
                first.add_note(note)
            raise first
        return left

    @property
    def failures(self) -> list[PostMortem]:
        """The failures of the pools whose last request failed."""
        return [pool.failure for pool in self._pools.values() if pool.failure is not None]

    @property
    def gpus(self) -> frozenset[str]:
        """The GPUs on which there are processes."""
        # Also of a pool that has failed: a rank of it may be held for the debugger.
        pools = (*self._pools.values(), *self._leaving)
        return frozenset(gpu for pool in pools if pool.pids for gpu in pool.spec.gpus)

    def warm(self, world_size: int) -> list[tuple[str, ...]]:
        """The GPUs of each pool of so many ranks, the one used last first."""
        return [spec.gpus for spec, pool in self._pools.items() if pool.alive and len(spec.gpus) == world_size][::-1]

    def rest(self, but: PoolSpec | None = None) -> None:
        """Has every pool give up its communicators and device memory; the processes stay.

        Args:
            but: the pool that keeps them, and needs the others' memory.
        """
        for pool in [pool for spec, pool in self._pools.items() if spec != but]:
            try:
                pool.rest()
            except RankDied as error:  # of idle ranks: the test at hand did not fail by it
                self._remember(pool, error)

    def debug(self, failure: PostMortem, terminal: Callable[[str], str]) -> bool:
        """Opens the debugger on the rank that failed, if it is still there; says whether it was."""
        return any(pool.debug(terminal) for pool in self._pools.values() if pool.failure is failure)

    def _retire_surplus(self, spec: PoolSpec) -> None:
        # A process that shares GPUs is given others again and again; each set of them would keep its ranks.
        alike = [other for other in self._pools if other.gpus and len(other.gpus) == len(spec.gpus) and other != spec]
        for surplus in alike[: max(0, len(alike) + 1 - MOST_OF_A_SIZE)]:
            self.retire(surplus)
        if spec.environ:  # tests that share an environment are neighbours: ranks with another one have had theirs
            for other in [other for other in self._pools if other.environ not in ((), spec.environ)]:
                self.retire(other)

    def retire(self, spec: PoolSpec, *, wait: bool = True) -> None:
        """Ends the pool that is made of this, if there is one.

        Args:
            spec: what it is made of.
            wait: whether it is gone when this returns; otherwise it is when ``get`` does.
        """
        if spec in self._pools:
            self._leaving.append(self._pools.pop(spec))
            self._leaving[-1].leave()
        if wait:
            self._see_off()

    def retire_with(self, environ: tuple[tuple[str, str], ...], *, wait: bool = True) -> None:
        """Ends every pool whose test set these variables for it; ``wait`` as for ``retire``."""
        for spec in [spec for spec in self._pools if spec.environ == environ]:
            self.retire(spec, wait=wait)

    def retire_owned(self, *, but: str) -> None:
        """Ends every pool that belongs to the tests of one file, except those of the file ``but``."""
        for spec in [spec for spec in self._pools if spec.owner not in ("", but)]:
            self.retire(spec)

    def retire_all(self, but: PoolSpec | None = None, *, wait: bool = True) -> None:
        """Ends every pool; the next one asked for has fresh processes and communicators.

        Args:
            but: the pool that stays, with nothing else on its GPUs and cores.
            wait: as for ``retire``.
        """
        for spec in [spec for spec in self._pools if spec != but]:
            self.retire(spec, wait=False)
        if wait:
            self._see_off()

    def _see_off(self) -> None:
        while self._leaving:
            self._leaving.pop().close()

    def close(self) -> None:
        """Ends every pool, and what ranks are started from."""
        self.retire_all()
        self._nodes.close()
