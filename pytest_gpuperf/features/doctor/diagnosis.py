"""All checks, in the order of the reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pytest_gpuperf.features.doctor.checks import (
    activity,
    driver,
    gpu_memory,
    host,
    isolation,
    links,
    modes,
    network,
    pcie,
    software,
    variables,
)
from pytest_gpuperf.features.doctor.facts import Facts
from pytest_gpuperf.features.doctor.finding import Finding, Severity

CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    driver.check,
    gpu_memory.check,
    modes.check,
    links.check,
    pcie.check,
    activity.check,
    variables.check,
    software.check,
    isolation.check,
    host.check,
    network.check,
)


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """The findings of all checks, the worst first."""
    found = [finding for check in CHECKS for finding in check(facts)]
    return tuple(sorted(found, key=lambda finding: finding.severity.rank))


def blocks(findings: tuple[Finding, ...]) -> bool:
    """Whether multi-GPU work fails or is worth nothing on the machine."""
    return any(finding.severity is Severity.CRITICAL for finding in findings)
