"""What two ways' curves say of each other."""

from __future__ import annotations

from pytest_gpuperf import Sweep


def crossover(baseline: Sweep, other: Sweep) -> int | None:
    """The largest size up to which the other way is faster at every size; None if it is slower at the smallest."""
    faster = None
    for nbytes, theirs, ours in zip(baseline.sizes, baseline.seconds, other.seconds, strict=True):
        if ours >= theirs:
            break
        faster = nbytes
    return faster
