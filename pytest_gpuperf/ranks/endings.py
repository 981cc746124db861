"""How a request ended on one rank, as the controller sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuperf.ranks.channel import Parcel
from pytest_gpuperf.ranks.messages import Raised, Tally


@dataclass(frozen=True, slots=True)
class Answered:
    """The rank came to the end of the request."""

    payload: Parcel
    collectives: int = 0
    """As ``Returned.collectives``."""
    tallies: tuple[Tally, ...] | None = None
    """As ``Returned.tallies``."""


@dataclass(frozen=True, slots=True)
class Died:
    """The rank's process ended before it answered."""

    at: float
    code: int | None
    """Exit code; minus a signal's number where one killed it; None if unknown."""
    last_words: str = ""
    """The exception of C++ that ended it, where one did."""
    stack: str = ""
    """The main thread's stack when a signal ended it, as faulthandler printed it; empty where it could not."""
    lost: str = ""
    """Why its node was given up, in words, if it was: nothing else is known of the rank then."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """The rank had not answered when the controller gave up on it, and was killed."""

    at: float
    stacks: str
    """Stacks of its threads, as faulthandler prints them; the main thread's first."""


Ending = Answered | Raised | Died | Stuck


def is_undisturbed(endings: Sequence[Ending]) -> bool:
    """Whether all ranks raised before they met: the communicator that no program sees is as it was.

    Groups that the program made, such as those of a mesh, are no disturbance if all ranks made as many.
    """
    groups = {ending.groups if isinstance(ending, Raised) and ending.usable else None for ending in endings}
    return None not in groups and len(groups) == 1
