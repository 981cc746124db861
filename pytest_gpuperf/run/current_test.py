"""The test that runs now, as far as its ranks are concerned."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from pytest_gpuperf.markers import RanksMarker
from pytest_gpuperf.ranks.failures import RankTimeout
from pytest_gpuperf.ranks.postmortem import PostMortem
from pytest_gpuperf.ranks.spec import Opening

_AFTER_A_HANG = 10  # times the longest run that returned: what a run gets once another of its test has hung
_LEAST_AFTER_A_HANG = 5.0  # seconds
_KEPT_FAILURES = 16  # of one test: hypothesis meets hundreds while it shrinks, and raises some of the last


@dataclass(slots=True)
class CurrentTest:
    """A test, its ranks' settings, and what its runs came to."""

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
    opening: Opening = Opening.GROUP
    environ: Mapping[str, str] | None = None
    """What its ranks inherit; None for this process's environment as it is."""
    prepared: bool = False
    """Whether its lease was taken and its ranks were brought up."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that it has leased; empty for gloo."""
    probes: bool = False
    """Whether it only asks NCCL, on ranks like those of a launch."""
    first_timeout: float | None = None
    """Seconds that its first run that hung had; None if none has."""
    patched: set[str] = field(default_factory=set)
    """Names of what it had patched in this process when it ran programs, and was warned of."""
    longest: float = 0.0
    """Seconds of its longest run that returned."""
    failures: deque[PostMortem] = field(default_factory=lambda: deque(maxlen=_KEPT_FAILURES))
    """Post-mortems of its last runs that failed."""

    def note_returned(self, seconds: float) -> None:
        """A run of it returned after so many seconds."""
        self.longest = max(self.longest, seconds)

    def note_hang(self, error: RankTimeout) -> None:
        """A run of it hung: those that follow get less time, and their errors say so.

        Others will hang too, when hypothesis looks for a smaller example: they need not take as long.
        """
        if self.first_timeout is None:
            self.first_timeout = self.timeout
        elif self.timeout < self.first_timeout:
            error.add_note(
                f"the first run of this test that hung had {self.first_timeout:g} s, and runs after it have "
                f"{self.timeout:g} s"
            )
        self.timeout = min(self.timeout, max(_LEAST_AFTER_A_HANG, _AFTER_A_HANG * self.longest))

    @property
    def is_timed(self) -> bool:
        """Whether its ranks are those of a launch, or like them."""
        return self.launch is not None or self.probes
