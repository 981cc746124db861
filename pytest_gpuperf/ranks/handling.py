"""Exceptions that a rank is handling. One that waits behind a cleanup is shown nowhere else: the cleanup may never end.

Read in rank processes, worded in the pytest process.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuperf.ranks import tracebacks
from pytest_gpuperf.ranks.collectives import say_ranks

_MOST = 4  # exceptions of a chain that are named: the first one and the last ones; a loop of retries may chain many


@dataclass(frozen=True, slots=True)
class Handled:
    """An exception that a thread is handling, in ``except``, ``finally`` or ``__exit__``."""

    headline: str
    """Type and first line of the text: ``ValueError: bad sample``."""
    place: str
    """``file:line in function`` where the program raised it; empty if that is not known."""
    text: str
    """The formatted traceback."""
    earlier: tuple[tuple[str, str], ...] = ()
    """Headlines and places of the exceptions that were being handled when it was raised, the latest first."""
    thread: str = ""
    """The name of the program's own thread that handles it; empty for the main thread."""

    def __str__(self) -> str:
        chain = ", after ".join(
            headline + (f", raised at {place}" if place else "")
            for headline, place in ((self.headline, self.place), *self.earlier)
        )
        return f"{chain}, in its thread {self.thread}" if self.thread else chain

    @property
    def origin(self) -> str:
        """The place of the first exception."""
        return self.earlier[-1][1] if self.earlier else self.place


def list_handled(threads: Mapping[int, str]) -> tuple[Handled, ...]:
    """The exceptions that threads of this process are handling.

    Args:
        threads: names by identity, an empty one for the main thread.
    """
    found: list[Handled] = []
    for thread, entry in sys._current_exceptions().items():
        error: object = entry[1] if isinstance(entry, tuple) else entry  # Python 3.11 has (type, value, traceback)
        if thread in threads and isinstance(error, BaseException):
            found.append(_read_handled(error, threads[thread]))
    return tuple(sorted(found, key=lambda one: one.thread))


def group_handled(handling: Mapping[int, Sequence[Handled]]) -> list[tuple[list[int], Handled]]:
    """Which ranks are handling which exception, those of main threads first, then those of the fewest ranks."""
    groups: dict[str, tuple[list[int], Handled]] = {}
    for rank in sorted(handling):
        for one in handling[rank]:
            groups.setdefault(str(one), ([], one))[0].append(rank)
    return sorted(groups.values(), key=lambda group: (bool(group[1].thread), len(group[0])))


def find_cause(handling: Mapping[int, Sequence[Handled]], size: int) -> tuple[list[int], Handled] | None:
    """The exception that is the cause of a hang, with its ranks.

    It is None if no main thread is handling one. It is None too if all ranks are handling one from the same place: that
    may be a fallback for a package that is missing.

    Args:
        handling: what ranks are handling that have not returned.
        size: how many ranks the run has.
    """
    main = {rank: one for rank, some in handling.items() for one in some if not one.thread}
    alike = len(main) == size and len({one.place for one in main.values()}) == 1
    return group_handled(handling)[0] if main and not alike else None


def describe_handled(ranks: Sequence[int], one: Handled) -> str:
    """``rank 1 is handling ValueError: bad sample, raised at test_x.py:12 in program``."""
    return f"{say_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} handling {one}"


def format_tracebacks(handling: Mapping[int, Sequence[Handled]]) -> list[tuple[str, str]]:
    """Sections of a report: title and traceback."""
    return [
        (f"traceback of what {say_ranks(ranks)} handle{'s' if len(ranks) == 1 else ''}", one.text.rstrip())
        for ranks, one in group_handled(handling)
    ]


def _read_handled(error: BaseException, thread: str) -> Handled:
    chain = _chain(error)
    earlier = chain[1:] if len(chain) <= _MOST else [*chain[1 : _MOST - 1], chain[-1]]
    return Handled(
        headline=_format_headline(error),
        place=tracebacks.place(error.__traceback__),
        text="".join(traceback.format_exception(error)),
        earlier=tuple((_format_headline(one), tracebacks.place(one.__traceback__)) for one in earlier),
        thread=thread,
    )


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and all(following is not one for one in chain):
        chain.append(following)
        context = None if following.__suppress_context__ else following.__context__
        following = context if following.__cause__ is None else following.__cause__
    return chain


def _format_headline(error: BaseException) -> str:
    return tracebacks.format_headline(tracebacks.kind(error), tracebacks.extract_text(error))
