"""The lessor of GPUs and cores to tests: what a run needs of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol


class Lessor(Protocol):
    """Leases for one test after another; ``leasing.Leasing`` has them of this machine, ``ClusterLeasing`` of nodes."""

    def gpus(self, count: int, holder: str, warm: Sequence[Collection[str]] = ()) -> tuple[str, ...]:
        """Takes so many of the run's GPUs, beside tests of its other workers; returns their UUIDs."""
        ...

    def machine(self, holder: str) -> tuple[str, ...]:
        """Leases all GPUs, so that nothing else is on them; returns those of the run."""
        ...

    def cores(self, count: int, holder: str) -> None:
        """Leases so many cores, or all if there are fewer, so that no other timed test is on them."""
        ...

    def memory_is_scarce(self, gpus: Sequence[str]) -> bool:
        """Whether one of the GPUs has less than half of its memory free."""
        ...

    def release(self, *, staying: Collection[str] = (), await_memory: bool = False) -> None:
        """Lets go of what is held."""
        ...

    def close(self) -> None:
        """Lets go of what is held, for good."""
        ...

    def is_wanted_alone(self, gpus: Collection[str]) -> bool:
        """Whether another process waits to be alone on one of these."""
        ...

    def make_way(self) -> None:
        """Ends what stays on GPUs between leases, if somebody waits to be alone on one of them."""
        ...
