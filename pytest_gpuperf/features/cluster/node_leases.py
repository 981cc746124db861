"""The leases of a node's GPUs, which its host holds for the run, beside every other pytest process of the node."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path

from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.leases.folder import LeaseError
from pytest_gpuperf.leases.lease import Grant
from pytest_gpuperf.leases.leases import Leases

_QUIET = 5.0  # seconds of waiting for a lease that nobody need hear of


class NodeLeases:
    """Holds the GPUs of one test after another. ``waits_for`` and ``give_up`` may run beside ``take``."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        """Holds none.

        Args:
            folder: where all processes of the node keep their leases.
            machine: the node's GPUs, whose memory dead ranks give back.
        """
        self._leases = Leases(folder, machine.devices.used_memory if machine.gpus else None)
        self._devices = ExitStack()
        if machine.gpus:
            self._devices.enter_context(machine.devices.session())  # to begin one for each reading would cost
        self._grant: Grant | None = None
        self._holder = ""
        self._said = ""
        self._given_up = threading.Event()

    def take(self, gpus: Sequence[str], holder: str, *, alone: bool, timeout: float) -> tuple[str, ...]:
        """Leases GPUs; returns those whose memory dead ranks have not given back in time.

        Args:
            gpus: their UUIDs.
            holder: the test.
            alone: whether no other run's idle ranks may stay there.
            timeout: seconds to wait for others; 0 tries once.

        Raises:
            LeaseError: others held them for longer, or it was given up.
        """
        self._given_up.clear()
        self._said, self._holder = "", holder
        give = self._leases.acquire if alone else self._leases.share
        self._grant = give(
            gpus,
            len(gpus),
            holder=holder,
            timeout=timeout,
            on_wait=self._say,
            quiet=_QUIET,
            meanwhile=self._heed,
        )
        return self._grant.unreturned

    def waits_for(self) -> str:
        """Who is waited for, in words, once for each time that there is something to say; else empty."""
        said, self._said = self._said, ""
        return said

    def give_up(self) -> None:
        """Ends the waiting of ``take``."""
        self._given_up.set()

    def release(self, staying: Collection[str], *, await_memory: bool) -> tuple[str, ...]:
        """Lets go of what is held; returns the GPUs whose memory did not come back.

        Args:
            staying: the GPUs on which idle ranks stay.
            await_memory: whether ranks on the other GPUs may have ended.
        """
        grant, self._grant = self._grant, None
        return self._leases.give_back(grant, staying, self._holder, await_memory=await_memory)

    def is_wanted_alone(self) -> bool:
        """Whether another process waits to be alone on a GPU on which the run's ranks stay."""
        return self._leases.is_wanted_alone(self._leases.staying)

    def close(self) -> None:
        """Lets go of what is held, once the memory of ranks that were there is back."""
        self.release((), await_memory=True)
        self._devices.close()

    def _say(self, text: str) -> None:
        self._said = text

    def _heed(self) -> None:
        if self._given_up.is_set():
            raise LeaseError(f"the run no longer waits for the GPUs of {self._holder!r}")
