"""One of the runs that a page shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_gpuperf.baselines.differences import find_usual
from pytest_gpuperf.baselines.schema import LaunchInfo
from pytest_gpuperf.report.results_file import Results


@dataclass(frozen=True, slots=True)
class Run:
    """The results of one run, under a name that no other run of the page has."""

    name: str
    results: Results

    @property
    def launches(self) -> list[LaunchInfo]:
        """In the order of time."""
        return sorted(self.results.candidate.launches.values(), key=lambda info: info.at)

    @property
    def at(self) -> str:
        """When its first launch began, in ISO 8601; empty if it measured nothing."""
        return next((one.at for one in (*self.launches, self.results.raced) if one is not None), "")

    @property
    def host(self) -> str:
        """The host that it ran on; empty if it measured nothing."""
        return next((one.host for one in (*self.launches, self.results.raced) if one is not None), "")

    @property
    def code(self) -> str:
        """What it measured, in short; empty if that is not known."""
        raced = self.results.raced
        if raced is not None:
            return f"{raced.commit[:12]}{' with uncommitted changes' * raced.dirty}"
        return self.launches[0].commit[:12] if self.launches else ""

    @property
    def old_code(self) -> str:
        """What that raced, in short; empty if it raced nothing by itself."""
        raced = self.results.raced
        if raced is None:
            return ""
        return f"{raced.against} ({raced.old_commit[:12]})" if raced.old_commit else raced.against

    @property
    def facts(self) -> str:
        """When, where and what it measured, on one line."""
        codes = f"{self.code}, against {self.old_code}" if self.old_code else self.code
        facts = ("smoke" * self.results.smoke, self.at, self.host, codes)
        return " · ".join(filter(None, facts)) or "measured nothing"

    @property
    def key(self) -> str:
        """The hardware key."""
        return self.results.candidate.hardware_key

    @property
    def environment(self) -> Mapping[str, str]:
        """The versions and variables that most of its launches ran with."""
        return find_usual(info.environment for info in self.launches)
