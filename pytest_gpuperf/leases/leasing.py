"""What the running test has leased of the machine: GPUs, or cores, shared with every other pytest process on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path

from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.leases.lease import Lease
from pytest_gpuperf.leases.leases import Leases
from pytest_gpuperf.leases.memory import CORE

_QUIET = 5.0  # seconds of waiting for a lease that nobody need hear of


class Leasing:
    """Leases for one test after another; a launch's perf tests keep theirs from test to test."""

    def __init__(
        self,
        machine: Machine,
        folder: Path,
        *,
        timeout: float,
        tell: Callable[[str], None],
        leave: Callable[[], None],
        share: tuple[int, int] | None = None,
    ) -> None:
        """Begins without a lease.

        Args:
            machine: what there is to lease.
            folder: where all processes of the machine keep their leases.
            timeout: seconds to wait for a lease.
            tell: told who is waited for.
            leave: ends the processes that stay on GPUs between leases; called where another must be alone there.
            share: of several workers with the same GPUs, which one this is, and how many there are.
        """
        self._leases = Leases(folder, machine.devices.used_memory if machine.gpus else None)
        self._devices = ExitStack()
        if machine.gpus:
            # Held open: to begin and end a session for each reading would cost milliseconds a test.
            self._devices.enter_context(machine.devices.session())
        self._timeout = timeout
        self._machine = machine
        self._tell = tell
        self._leave = leave
        self._lease: Lease | None = None
        self._last: tuple[str, ...] = ()
        self._holder = ""
        self._share = share

    def gpus(self, count: int, holder: str, warm: Sequence[Collection[str]] = ()) -> tuple[str, ...]:
        """Leases so many of the run's GPUs, those of the last test where they are free.

        Args:
            count: how many.
            holder: the test.
            warm: sets of GPUs on which there are ranks already; a free one comes before GPUs without.

        Raises:
            LeaseError: others held them for longer than the run waits.
        """
        # One's own share comes first, with ranks there or not yet: so workers meet less often elsewhere.
        self._take(self._machine.gpu_uuids, count, holder, warm=[*self._home(count), *warm])
        return self._last

    def machine(self, holder: str) -> tuple[str, ...]:
        """Leases all GPUs of the machine, so that nothing else is on them; returns those of the run.

        Raises:
            LeaseError: others held some for longer than the run waits.
        """
        everything = tuple(dict.fromkeys([*self._machine.gpu_uuids, *self._machine.everything]))
        self._take(everything, len(everything), holder, alone=True)
        return self._machine.gpu_uuids

    def cores(self, count: int, holder: str) -> None:
        """Leases so many cores, or all if there are fewer.

        Raises:
            LeaseError: others held them for longer than the run waits.
        """
        cores = tuple(f"{CORE}{core}" for core in sorted(os.sched_getaffinity(0)))
        self._take(cores, min(count, len(cores)), holder)

    def memory_is_scarce(self, gpus: Sequence[str]) -> bool:
        """Whether one of the GPUs has less than half of its memory free."""
        total = {gpu.uuid: gpu.memory_bytes for gpu in self._machine.gpus}
        return any(self._machine.devices.used_memory(uuid) > total[uuid] / 2 for uuid in gpus)

    def release(self, *, staying: Collection[str] = (), await_memory: bool = False) -> None:
        """Lets go of what is held.

        Args:
            staying: the GPUs on which processes stay, this lease's and earlier ones'.
            await_memory: whether processes that were on the other GPUs may have ended: their memory takes a moment to
                come back.
        """
        self._leases.stay(staying, self._holder)
        if self._lease is not None:
            lease, self._lease = self._lease, None
            with lease:
                if await_memory and (missing := lease.await_memory(staying)):
                    self._tell(f"memory of ranks that have ended did not come back on {', '.join(missing)}")

    def close(self) -> None:
        """Lets go of what is held, once processes that were on it are gone, and of the GPUs' library."""
        self.release(await_memory=bool(self._machine.gpus))
        self._devices.close()

    def wanted_alone(self, gpus: Collection[str]) -> bool:
        """Whether another process waits to be alone on one of these."""
        return self._leases.wanted_alone(gpus)

    def make_way(self) -> None:
        """Ends what stays on GPUs between leases, if somebody waits to be alone on one of them."""
        if self._leases.wanted_alone(self._leases.staying):
            self._leave()
            self._leases.stay((), self._holder)

    def _home(self, count: int) -> list[tuple[str, ...]]:
        if self._share is None:
            return []
        worker, workers = self._share
        gpus = self._machine.gpu_uuids
        first = worker * len(gpus) // workers // count * count
        return [gpus[first : first + count]] if first + count <= len(gpus) else []

    def _take(
        self,
        candidates: tuple[str, ...],
        count: int,
        holder: str,
        *,
        warm: Sequence[Collection[str]] = (),
        alone: bool = False,
    ) -> None:
        self._holder = holder
        if self._lease is not None:
            if len(self._lease.resources) == count and set(self._lease.resources) <= set(candidates):
                return
            self._leave()
            self.release(await_memory=bool(self._machine.gpus))
        self._lease = self._leases.acquire(
            candidates,
            count,
            prefer=self._last,
            warm=warm,
            alone=alone,
            holder=holder,
            timeout=self._timeout,
            on_wait=self._tell,
            quiet=_QUIET,
            meanwhile=self.make_way,
        )
        self._last = self._lease.resources
        if self._lease.unreturned:
            self._tell(f"memory of a run that died has not come back on {', '.join(self._lease.unreturned)}")
