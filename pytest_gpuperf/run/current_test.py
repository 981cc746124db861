"""The test that runs now: what its ranks are made of, and what they did."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest

from pytest_gpuperf.markers import RanksMarker
from pytest_gpuperf.ranks.postmortem import PostMortem

_KEPT_FAILURES = 16  # of one test: hypothesis meets hundreds while it shrinks, and raises some of the last


@dataclass(slots=True)
class CurrentTest:
    """The test that runs now, as far as its ranks are concerned."""

    item: pytest.Item
    identity: str
    """Node id, the same in each launch."""
    marker: RanksMarker
    timeout: float
    """Seconds for a run."""
    group: str
    """Name of its process groups: a test's own, or one for all perf tests of a launch."""
    seed: int
    launch: int | None
    """Number of a perf test's launch; None for other tests."""
    world_size: int | None
    """How many ranks it has; None if it uses none."""
    prepared: bool = False
    """Whether its lease was taken and its ranks were brought up."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that it has leased; empty for gloo."""
    longest: float = 0.0
    """Seconds of its longest run that returned."""
    failures: deque[PostMortem] = field(default_factory=lambda: deque(maxlen=_KEPT_FAILURES))
    """Of its last runs that failed."""
