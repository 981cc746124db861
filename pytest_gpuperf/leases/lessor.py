"""The lessor of GPUs and cores to tests: what a run needs of it, and one that has nothing to lease."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol


class Lessor(Protocol):
    """Leases for one test after another; ``leasing.Leasing`` has them of this machine."""

    def gpus(self, count: int, holder: str, warm: Sequence[Collection[str]] = ()) -> tuple[str, ...]:
        """Takes so many of the run's GPUs, beside tests of its other workers; returns their UUIDs."""
        ...

    def machine(self, holder: str) -> tuple[str, ...]:
        """Leases all GPUs, so that nothing else is on them; returns those of the run."""
        ...

    def cores(self, count: int, holder: str) -> None:
        """Leases so many cores, or all if there are fewer."""
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

    def wanted_alone(self, gpus: Collection[str]) -> bool:
        """Whether another process waits to be alone on one of these."""
        ...

    def make_way(self) -> None:
        """Ends what stays on GPUs between leases, if somebody waits to be alone on one of them."""
        ...


class RunOfItsOwn:
    """Leases nothing: the run's GPUs are its own until it ends, as Ray reserves them for it."""

    def __init__(self, gpus: tuple[str, ...]) -> None:
        self._gpus = gpus

    def gpus(self, count: int, holder: str, warm: Sequence[Collection[str]] = ()) -> tuple[str, ...]:
        """The first GPUs of the run."""
        return self._gpus[:count]

    def machine(self, holder: str) -> tuple[str, ...]:
        """All GPUs of the run."""
        return self._gpus

    def cores(self, count: int, holder: str) -> None:
        """Nothing to do."""

    def memory_is_scarce(self, gpus: Sequence[str]) -> bool:
        """Unknown, and so taken for scarce: ranks that rest give their memory back."""
        return bool(gpus)

    def release(self, *, staying: Collection[str] = (), await_memory: bool = False) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""

    def wanted_alone(self, gpus: Collection[str]) -> bool:
        """Nobody else can be there."""
        return False

    def make_way(self) -> None:
        """Nothing to do."""
