"""A remark about a line of source, for a service that shows it next to the code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Annotation:
    """One remark, which is a warning: it fails nothing."""

    file: Path
    """Absolute, or relative to the rootdir."""
    line: int
    """1 and up."""
    title: str
    message: str
