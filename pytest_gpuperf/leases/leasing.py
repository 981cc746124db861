"""What the running test leases of the machine: GPUs, or cores if it is timed on CPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.leases.lease import Lease, SharedLease
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
        run: str | None = None,
    ) -> None:
        """Begins without a lease.

        Args:
            machine: what there is to lease.
            folder: where all processes of the machine keep their leases.
            timeout: seconds to wait for a lease.
            tell: told who is waited for.
            leave: ends the processes that stay on GPUs between leases; called where another must be alone there.
            run: names the run to all of its workers, which share GPUs; None if it has one process.
        """
        self._leases = Leases(folder, machine.devices.used_memory if machine.gpus else None, run)
        self._devices = ExitStack()
        if machine.gpus:
            # Held open: to begin and end a session for each reading would cost milliseconds a test.
            self._devices.enter_context(machine.devices.session())
        self._timeout = timeout
        self._machine = machine
        self._tell = tell
        self._leave = leave
        self._lease: Lease | SharedLease | None = None
        self._holder = ""

    def gpus(self, count: int, holder: str, warm: Sequence[Collection[str]] = ()) -> tuple[str, ...]:
        """Takes so many of the run's GPUs, which tests of its other workers may share.

        Args:
            count: how many.
            holder: the test.
            warm: sets of GPUs on which there are ranks already; they come before GPUs that are as crowded.

        Raises:
            LeaseError: others held them for longer than the run waits.
        """
        share = partial(self._leases.share, warm=warm)
        return self._take(self._machine.gpu_uuids, count, holder, SharedLease, share)

    def machine(self, holder: str) -> tuple[str, ...]:
        """Leases all GPUs of the machine, so that nothing else is on them; returns those of the run.

        Raises:
            LeaseError: others held some for longer than the run waits.
        """
        everything = tuple(dict.fromkeys([*self._machine.gpu_uuids, *self._machine.everything]))
        self._take(everything, len(everything), holder, Lease, self._leases.acquire)
        return self._machine.gpu_uuids

    def cores(self, count: int, holder: str) -> None:
        """Leases so many cores, or all if there are fewer, for a test that is timed on CPUs.

        Args:
            count: how many.
            holder: the test.

        Raises:
            LeaseError: others held them for longer than the run waits.
        """
        cores = tuple(f"{CORE}{core}" for core in sorted(os.sched_getaffinity(0)))
        self._take(cores, min(count, len(cores)), holder, Lease, self._leases.acquire)

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
        lease, self._lease = self._lease, None
        if missing := self._leases.give_back(lease, staying, self._holder, await_memory=await_memory):
            self._tell(f"memory of ranks that have ended did not come back on {', '.join(missing)}")

    def close(self) -> None:
        """Lets go of what is held, once processes that were on it are gone, and of the GPUs' library."""
        self.release(await_memory=bool(self._machine.gpus))
        self._devices.close()

    def is_wanted_alone(self, gpus: Collection[str]) -> bool:
        """Whether another process waits to be alone on one of these."""
        return self._leases.is_wanted_alone(gpus)

    def make_way(self) -> None:
        """Ends what stays on GPUs between leases, if somebody waits to be alone on one of them."""
        if self._leases.is_wanted_alone(self._leases.staying):
            self._leave()
            self._leases.stay((), self._holder)

    def _take(
        self,
        candidates: tuple[str, ...],
        count: int,
        holder: str,
        kind: type[Lease | SharedLease],
        give: Callable[..., Lease | SharedLease],
    ) -> tuple[str, ...]:
        self._holder = holder
        if self._lease is not None:
            held = self._lease.resources
            if isinstance(self._lease, kind) and len(held) == count and set(held) <= set(candidates):
                return held
            self._leave()
            self.release(await_memory=bool(self._machine.gpus))
        self._lease = give(
            candidates,
            count,
            holder=holder,
            timeout=self._timeout,
            on_wait=self._tell,
            quiet=_QUIET,
            meanwhile=self.make_way,
        )
        if self._lease.unreturned:
            self._tell(f"memory of ranks that have ended is not back on {', '.join(self._lease.unreturned)}")
        return self._lease.resources
