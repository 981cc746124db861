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
    seconds: float = 0.0
    """How long the tests with it took."""


@dataclass(slots=True)
class Coverage:
    """All sites and faults of a run."""

    sites: dict[Site, Calls] = field(default_factory=dict)
    reached_by: dict[Site, list[str]] = field(default_factory=dict)
    """Tests, the fastest first."""
    judged: list[Judged] = field(default_factory=list)
    seconds_of: dict[str, float] = field(default_factory=dict)
    """How long each test took when it ran again without a fault."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Tests that no fault was tried on, and why."""
    left_over: set[Fault] = field(default_factory=set)
    """Faults for which there was no time."""
    calls: set[Call] = field(default_factory=set)
    """Calls in the source."""
    made: set[Call] = field(default_factory=set)
    """Those that an observed program made."""
    seconds: float = 0.0

    def see(self, site: Site, calls: Calls, test: str) -> None:
        """Takes note that a test reaches a site."""
        if site in self.sites:
            self.sites[site].add(calls)
        else:
            self.sites[site] = calls
        self.reached_by.setdefault(site, []).append(test)

    def add(self, other: Coverage) -> None:
        """Takes what another process found: a fault that one of both noticed is noticed."""
        for site, calls in other.sites.items():
            for test in other.reached_by[site]:
                self.see(site, calls, test)
        known = {one.fault: one for one in self.judged}
        for one in other.judged:
            before = known.setdefault(one.fault, one)
            if one.outcome > before.outcome:
                known[one.fault] = one
        self.judged = list(known.values())
        self.left_over = (self.left_over | other.left_over) - {one.fault for one in self.of(Outcome.NOTICED)}
        self.calls |= other.calls
        self.made |= other.made
        self.left_out |= other.left_out
        self.seconds_of |= other.seconds_of
        self.seconds = max(self.seconds, other.seconds)

    @property
    def unreached(self) -> list[Call]:
        """Calls in the source that no observed program made."""
        return sorted(self.calls - self.made)

    def of(self, outcome: Outcome, site: Site | None = None) -> Sequence[Judged]:
        """The faults with an outcome, at one site or at all."""
        return [one for one in self.judged if one.outcome is outcome and site in (None, one.fault.site)]

    def list_worst_first(self) -> list[Site]:
        """All sites: those with the largest share of unnoticed faults first, then by file and line."""
        return sorted(self.sites, key=lambda site: (-self._compute_unnoticed_share(site), site))

    def tests(self, site: Site) -> list[str]:
        """The tests that reach a site and were judged, the fastest first."""
        return [test for test in self.reached_by[site] if test not in self.left_out]

    def _compute_unnoticed_share(self, site: Site) -> float:
        missed, noticed = len(self.of(Outcome.UNNOTICED, site)), len(self.of(Outcome.NOTICED, site))
        return missed / (missed + noticed) if missed else 0.0

    @property
    def counted(self) -> int:
        """How many faults a test could notice."""
        return self.count_at(None)

    def count_at(self, site: Site | None) -> int:
        """How many faults a test could notice at one site, or at all."""
        return len(self.of(Outcome.NOTICED, site)) + len(self.of(Outcome.UNNOTICED, site))

    @property
    def untried(self) -> int:
        """How many sites have faults, and time for none of them."""
        judged = {one.fault.site for one in self.judged}
        return len({fault.site for fault in self.left_over} - judged)

    def describe_shortfall(self, fail_under: float) -> str:
        """Return why the tests are not known to notice so much; empty if they are.

        Args:
            fail_under: the share of faults that they must notice, in percent.
        """
        if self.untried:
            return f"no fault was tried at {self.untried} of {len(self.sites)} call sites: give --mutate more seconds"
        if self.share is None:
            return "no fault could be judged"
        return "" if self.share >= fail_under else f"the tests notice {self.share:.1f} %"

    @property
    def share(self) -> float | None:
        """The share of those that a test noticed, in percent; None if there are none."""
        return 100 * len(self.of(Outcome.NOTICED)) / self.counted if self.counted else None
