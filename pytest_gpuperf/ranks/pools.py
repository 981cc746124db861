"""The warm pools of one pytest process, and when each of them has to go."""

from __future__ import annotations

import os

from pytest_gpuperf.ranks.launcher import Launcher
from pytest_gpuperf.ranks.pool import Pool, PoolSpec, rank_environ


class Pools:
    """Live pools by what they are made of. Ranks are started when first asked for."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._pools: dict[PoolSpec, Pool] = {}

    def get(self, spec: PoolSpec, group: str, timeout: float) -> Pool:
        """The pool with a process group of this name; whatever is not there yet is started.

        Ranks that an earlier test left unable to open another group are replaced: this test is not to blame.

        Args:
            spec: what the pool is made of.
            group: name of the group.
            timeout: seconds for opening it, and the least that its collectives must bear with.

        Raises:
            RankError: ranks did not come up, or fresh ones could not open the group.
        """
        pool = self._pools.get(spec)
        if pool is not None and pool.alive and pool.environ != rank_environ(spec, os.environ):
            pool.close()  # much is read from the environment once in a process's life
        if pool is not None and pool.alive:
            try:
                pool.open_group(group, timeout)
            except Exception:  # whatever a group broken by an earlier test may raise
                pool.kill()
            else:
                return pool
        pool = self._pools[spec] = Pool(self._launcher, spec, os.environ)
        pool.open_group(group, timeout)
        return pool

    def output(self) -> list[tuple[PoolSpec, int, str, str]]:
        """What ranks printed since the last call: pool, rank, stream, text."""
        return [(spec, *printed) for spec, pool in self._pools.items() for printed in pool.output()]

    def retire_others(self, spec: PoolSpec) -> None:
        """Ends every pool but this one, so that nothing else is on its GPUs and cores."""
        for other in [other for other in self._pools if other != spec]:
            self._pools.pop(other).close()

    def retire_all(self) -> None:
        """Ends every pool; the next one asked for has fresh processes and communicators."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def close(self) -> None:
        """Ends every pool and the forkserver."""
        self.retire_all()
        self._launcher.close()
