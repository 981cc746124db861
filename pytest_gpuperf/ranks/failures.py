"""What a run of ranks raises if the cause is no exception of the program's own; ``postmortem`` words the messages."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


class RankError(Exception):
    """Base of what ``run`` raises when the cause is no exception of the program's own."""

    __module__ = "pytest_gpuperf"  # where users import it from


class LaunchError(RankError):
    """Ranks could not be started."""


class RankDied(RankError):
    """A rank's process ended while it ran a program."""

    __module__ = "pytest_gpuperf"  # where users import it from

    codes: Mapping[int, int | None] = MappingProxyType({})
    """Exit codes of the ranks that ended, by rank; minus a signal's number, None if unknown."""
    others_returned: bool = False
    """Whether all other ranks came to the end of the program."""


class RankTimeout(RankError):
    """Ranks had not come to the end of the program when the run's time was up."""

    __module__ = "pytest_gpuperf"  # where users import it from


class CollectiveMismatch(RankError):
    """The ranks did not issue the same collectives: they returned from different ones, or would wait for ever."""

    __module__ = "pytest_gpuperf"  # where users import it from


class ResultError(RankError):
    """A program returned something that cannot leave its rank, or cannot be read outside it."""

    __module__ = "pytest_gpuperf"  # where users import it from


class RemoteError(RankError):
    """A program raised what cannot be raised here: it cannot be pickled, or would end the test run.

    The traceback is kept as text.
    """


class RanksSkipped(RankError):
    """All ranks skipped, for the same reason, which is the message."""
