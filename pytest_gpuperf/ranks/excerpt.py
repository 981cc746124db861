"""What a report shows of a text of any length: its beginning and its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

HEAD = 1 << 14  # bytes
TAIL = 3 << 14  # bytes; the end tells more of a failure


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Text as bytes, which may be cut anywhere: between two looks at a file, in the middle of a character."""

    size: int = 0
    """Bytes of the whole."""
    front: bytes = b""
    """The first of them; all, if those are no more than a report shows."""
    back: bytes = b""
    """The last of them; all, if those are no more than a report shows."""

    @classmethod
    def cut(cls, size: int, front: bytes, back: bytes) -> Self:
        """Return the excerpt of a text of this size.

        Args:
            size: bytes of the whole.
            front: the whole, or ``HEAD`` bytes of its beginning or more.
            back: the whole, or ``TAIL`` bytes of its end or more.
        """
        return cls(size, front, back) if size <= HEAD + TAIL else cls(size, front[:HEAD], back[-TAIL:])

    def __add__(self, other: Excerpt) -> Excerpt:
        front = self.front + other.front if self._whole else self.front
        back = self.back + other.back if other._whole else other.back
        return Excerpt.cut(self.size + other.size, front, back)

    def __str__(self) -> str:
        if self._whole:
            return self.front.decode(errors="replace")
        left_out = self.size - len(self.front) - len(self.back)
        note = f"[gpuperf: {left_out} bytes are left out here; pytest -s shows all that ranks print]"
        return f"{self.front.decode(errors='replace')}\n{note}\n{self.back.decode(errors='replace')}"

    @property
    def _whole(self) -> bool:
        return self.size <= HEAD + TAIL
