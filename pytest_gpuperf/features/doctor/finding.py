"""What a check comes to."""

from dataclasses import dataclass, field
from enum import Enum

from pytest_gpuperf.baselines.plain import OPTIONAL


class Severity(Enum):
    """How bad a finding is, worst first; the order of the members is the order of reports."""

    CRITICAL = "critical"
    """Multi-GPU work fails, gives wrong results, or runs at a fraction of its speed."""
    WARNING = "warning"
    """Work runs, and slower or less safely than it could."""
    UNKNOWN = "unknown"
    """The machine does not say; something may hide there."""
    INFO = "info"
    """Worth knowing; nothing to do."""
    PASS = "pass"

    @property
    def rank(self) -> int:
        """Its place in reports, the worst first."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found."""

    check: str
    """Names the check, the same in every run."""
    severity: Severity
    what: str
    """What was found, in one sentence."""
    why: str = field(default="", metadata=OPTIONAL)
    """Why it matters."""
    action: str = field(default="", metadata=OPTIONAL)
    """What to do about it."""


def make_critical(check: str, what: str, why: str, action: str) -> Finding:
    """A finding that blocks multi-GPU work."""
    return Finding(check, Severity.CRITICAL, what, why, action)


def make_warning(check: str, what: str, why: str, action: str) -> Finding:
    """A finding that costs speed or safety."""
    return Finding(check, Severity.WARNING, what, why, action)


def make_unknown(check: str, what: str, why: str, action: str) -> Finding:
    """A finding that the machine hides."""
    return Finding(check, Severity.UNKNOWN, what, why, action)


def make_info(check: str, what: str, why: str = "", action: str = "") -> Finding:
    """A finding worth knowing."""
    return Finding(check, Severity.INFO, what, why, action)


def make_passed(check: str, what: str) -> Finding:
    """A finding that all is well."""
    return Finding(check, Severity.PASS, what)
