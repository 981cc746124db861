"""The owners of the bytes of a buffer; no memory is touched, and no rank is asked."""

from __future__ import annotations

import math

ALIGNMENT = 16  # bytes; the vectors in which symmetric memory's kernels load and store


class Exhausted(MemoryError):
    """No piece of an arena is large enough."""


class Arena:
    """Which bytes of a buffer are taken: the first piece that fits; neighbours are joined when they are free.

    It touches no memory and talks to nobody. Ranks that make the same calls get the same offsets, so that a
    rank knows without asking where a peer's copy lies; ranks that do not must tell each other theirs.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._free = {0: nbytes} if nbytes else {}
        self._taken: dict[int, int] = {}

    @property
    def available(self) -> int:
        """Free bytes, in however many pieces."""
        return sum(self._free.values())

    def allocate(self, nbytes: int) -> int:
        """The offset of so many bytes, aligned.

        Raises:
            Exhausted: no piece is large enough.
            ValueError: less than one byte is asked for.
        """
        if nbytes < 1:
            raise ValueError(f"an allocation has at least 1 byte, got {nbytes}")
        wanted = math.ceil(nbytes / ALIGNMENT) * ALIGNMENT
        for offset in sorted(self._free):
            size = self._free[offset]
            if size >= wanted:
                del self._free[offset]
                if size > wanted:
                    self._free[offset + wanted] = size - wanted
                self._taken[offset] = wanted
                return offset
        raise Exhausted(
            f"no room for {wanted} bytes: {self.available} of {self._nbytes} are free, the largest piece has "
            f"{max(self._free.values(), default=0)}; free some, or make the arena larger by {wanted}"
        )

    def free(self, offset: int) -> None:
        """Gives back what ``allocate`` returned.

        Raises:
            ValueError: it is not allocated, or not any more.
        """
        if offset not in self._taken:
            raise ValueError(f"nothing is allocated at offset {offset}: it was freed before, or never allocated")
        self._free[offset] = self._taken.pop(offset)
        merged: dict[int, int] = {}
        last = -1  # where the piece began that the next one may continue
        for start, size in sorted(self._free.items()):
            if last in merged and last + merged[last] == start:
                merged[last] += size
            else:
                last = start
                merged[last] = size
        self._free = merged
