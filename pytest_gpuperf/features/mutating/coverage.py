"""What became of all faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from pytest_gpuperf.features.mutating.faults import Calls, Fault, Site
from pytest_gpuperf.features.mutating.source_calls import Call


class Outcome(IntEnum):
    """What became of a fault over all tests that reach its site; a later one wins."""

    NOT_MADE = 0
    """No program came by the site again."""
    EQUIVALENT = 1
    """All tests passed, and nothing differed by a bit."""
    UNNOTICED = 2
    """All tests passed, and something differed."""
    NOTICED = 3
    """A test failed."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One fault that was made."""

    fault: Fault
    outcome: Outcome
    by: str = ""
    """The test that noticed it."""


@dataclass(slots=True)
class Coverage:
    """All sites and faults of a run."""

    sites: dict[Site, Calls] = field(default_factory=dict)
    reached_by: dict[Site, list[str]] = field(default_factory=dict)
    """Tests, the fastest first."""
    judged: list[Judged] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Tests that no fault was tried on, and why."""
    left_over: int = 0
    """Faults for which there was no time."""
    unreached: list[Call] = field(default_factory=list)
    """Calls in the source that no observed program made."""
    seconds: float = 0.0

    def see(self, site: Site, calls: Calls, test: str) -> None:
        """Takes note that a test reaches a site."""
        if site in self.sites:
            self.sites[site].add(calls)
        else:
            self.sites[site] = calls
        self.reached_by.setdefault(site, []).append(test)

    def of(self, outcome: Outcome, site: Site | None = None) -> Sequence[Judged]:
        """The faults with an outcome, at one site or at all."""
        return [one for one in self.judged if one.outcome is outcome and site in (None, one.fault.site)]

    def worst_first(self) -> list[Site]:
        """All sites: those with the largest share of unnoticed faults first, then by file and line."""
        return sorted(self.sites, key=lambda site: (-self._unnoticed_share(site), site))

    def tests(self, site: Site) -> list[str]:
        """The tests that reach a site and were judged, the fastest first."""
        return [test for test in self.reached_by[site] if test not in self.left_out]

    def _unnoticed_share(self, site: Site) -> float:
        missed, noticed = len(self.of(Outcome.UNNOTICED, site)), len(self.of(Outcome.NOTICED, site))
        return missed / (missed + noticed) if missed else 0.0

    @property
    def counted(self) -> int:
        """How many faults a test could notice."""
        return len(self.of(Outcome.NOTICED)) + len(self.of(Outcome.UNNOTICED))

    @property
    def share(self) -> float | None:
        """The share of those that a test noticed, in percent; None if there are none."""
        return 100 * len(self.of(Outcome.NOTICED)) / self.counted if self.counted else None
