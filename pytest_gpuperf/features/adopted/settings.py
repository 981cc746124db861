"""The decorator ``on_ranks``: marks a class whose tests run on our ranks, and keeps what its author chose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from pytest_gpuperf.markers import RanksMarker, check_ranks

Class = TypeVar("Class", bound=type)

ON_RANKS = "__gpuperf_on_ranks__"
"""The attribute of a class in which the decorator keeps what it was given."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """What ``on_ranks`` was given."""

    world_sizes: tuple[int, ...]
    """Empty if the class has a world size of its own."""
    keywords: Mapping[str, Any]

    def marker(self, world_size: int, where: str) -> RanksMarker:
        """The marker of a native test that is set up alike.

        Args:
            world_size: of the test.
            where: the test, as errors name it.

        Raises:
            ValueError: a keyword that ``on_ranks`` does not take, or one of its values.
        """
        return check_ranks((world_size,), dict(self.keywords), f"{where}: on_ranks")


@overload
def on_ranks(cls: Class, /) -> Class: ...
@overload
def on_ranks(*world_sizes: int, **keywords: Any) -> Callable[[Class], Class]: ...


def on_ranks(*arguments: Any, **keywords: Any) -> Any:
    """Has the tests of a class run on this plugin's ranks instead of processes that their harness starts.

    Write it above a class of ``torch.testing._internal`` (``MultiProcessTestCase``, ``MultiProcContinuousTest`` and
    what derives from them) or of DeepSpeed's ``DistributedTest``, bare or with keywords: ``timeout``, ``device``,
    ``isolation``, ``env``, as the marker ``ranks`` takes them. The world size is the class's own.

    Above a plain class of pytest's, whose tests expect to be run by torchrun, it takes the world size:
    ``@on_ranks(4)``. Each test then runs on all ranks with the environment of torchrun.

    Raises:
        TypeError: it was put above something that is no class.
    """
    if len(arguments) == 1 and not keywords and not isinstance(arguments[0], int):
        return _mark(arguments[0], Adoption((), {}))
    adoption = Adoption(arguments, keywords)
    return lambda cls: _mark(cls, adoption)


def find_adoption(cls: type) -> Adoption | None:
    """What the decorator of the class, or of one that it derives from, was given; None without."""
    return getattr(cls, ON_RANKS, None)


def _mark(cls: Any, adoption: Adoption) -> Any:
    if not isinstance(cls, type):
        raise TypeError(
            f"on_ranks is written above a class, got {cls!r}: mark a function @pytest.mark.ranks and have it take ranks"
        )
    setattr(cls, ON_RANKS, adoption)
    return cls
