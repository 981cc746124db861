"""What the pytest process and ranks need to agree on for one test of an adopted class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from pytest_gpuperf.features.adopted.settings import Adoption
from pytest_gpuperf.ranks.context import Context


@dataclass(frozen=True, slots=True)
class Home:
    """The place where ranks find a class: they import its module, as the processes of its own harness would."""

    module: str
    file: str | None
    """The module's source; None for one that has none."""
    name: str
    """The name of the class in the module, with dots if another class contains it."""


@dataclass(frozen=True, slots=True)
class Call:
    """One test for the ranks."""

    home: Home
    family: str
    """The harness, by its name in ``families``."""
    method: str
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the harness hands its own processes."""
    environ: Mapping[str, str | None] = field(default_factory=dict)
    """Variables that differ from the ranks' own; None for one that is unset."""


Code: TypeAlias = int | None
"""The code with which a test left its process by ``sys.exit``; None if it came to its end, which no code shows."""


def require_ends(codes: Sequence[Code], cure: str = "") -> None:
    """Requires that the test came to its end on every rank. An exit with code 0 skips assertions, too.

    Args:
        codes: in rank order.
        cure: what else than replacing the exit makes the test pass.

    Raises:
        AssertionError: a rank left.
    """
    left = ", ".join(f"rank {rank} by sys.exit({code})" for rank, code in enumerate(codes) if code is not None)
    if left:
        raise AssertionError(
            f"the test left its process before its end: {left}; expected that it returns, raises or skips on every "
            f"rank: replace sys.exit{cure}"
        )


class Runner(Protocol):
    """The run's ranks, as a harness in the pytest process sees them."""

    def enlist(self, world_size: int, adoption: Adoption, *, launcher: bool = False) -> None:
        """Brings up ranks for the test that runs now, and takes note of the environment that they are to have.

        Args:
            world_size: how many.
            adoption: how they were asked for.
            launcher: whether they have the environment of torchrun.

        Raises:
            unittest.SkipTest: there are not as many GPUs.
            RuntimeError: no test runs.
        """
        ...

    def run(self, world_size: int, call: Call, timeout: float | None, *, outlives_deaths: bool = False) -> list[Code]:
        """Runs the test on every rank; the codes with which it would have left its processes, in rank order.

        Args:
            world_size: how many ranks, which are enlisted.
            call: the test.
            timeout: the harness's own, in seconds; None for the run's.
            outlives_deaths: whether the test expects that ranks die, so that the others go on after a death.

        Raises:
            BaseException: what the test raised on the rank that failed first, or a RankError.
        """
        ...


ADOPTED = "__gpuperf_adopted__"
"""The attribute of a class, in the pytest process, that holds its ``AdoptedClass``."""


@dataclass(frozen=True, slots=True)
class AdoptedClass:
    """What the tests of a class need to reach the ranks."""

    home: Home
    family: str
    adoption: Adoption
    runner: Runner


class Family(Protocol):
    """A harness: what of it runs in the pytest process, and what on ranks."""

    name: str

    def adopts(self, cls: type) -> bool:
        """Whether the class is one of this harness that runs its tests in processes."""
        ...

    def install(self, cls: type, adopted: AdoptedClass) -> None:
        """Has the class, in the pytest process, hand its tests to the runner; one that derives from it may follow."""
        ...

    def on_rank(self, cls: type, context: Context, call: Call) -> None:
        """Runs one test on a rank, as a process of the harness would.

        Raises:
            BaseException: what the test raises; SystemExit is how many of them end.
        """
        ...

    def skip_reason(self, code: int) -> str | None:
        """The reason to skip for which the harness's processes exit with this code; None if it is not one."""
        ...
