"""Small pieces of sentences that checks share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

GIB = 2**30


def format_gpus(indices: Sequence[int]) -> str:
    """GPU 3; GPUs 0, 1, 5."""
    return f"GPU{'s' if len(indices) > 1 else ''} {', '.join(map(str, indices))}"


def join_unique(things: Iterable[object]) -> str:
    """Things on one line, each once."""
    return ", ".join(dict.fromkeys(map(str, things)))


def format_size(count: float) -> str:
    """64 MiB, 1.5 GiB."""
    for unit, size in (("TiB", 2**40), ("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count:.0f} B"
