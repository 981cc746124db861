"""The settings of one run of the command, and its exit statuses."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.features.everywhere.launcher import Place

UNAVAILABLE = 69
"""Exit status if the command did not run to its end on all nodes: sysexits.h's EX_UNAVAILABLE, and none of pytest's."""
_FIRST_PORT, _PORTS = 20000, 10000  # below what systems give to clients, above Ray's ports
_CANDIDATES = 8


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one run, the same on all nodes."""

    place: Place
    command: tuple[str, ...]
    wait: float
    """Seconds in which all nodes must come."""
    silence: float
    """Seconds without a sign of life after which a node is lost."""
    grace: float
    """Seconds that the command has to end by itself, if the run is cancelled."""
    port: int | None
    """Where the first node listens; None for one of those that the job's identity gives."""
    home: Path
    """The user's home folder."""

    @property
    def ports(self) -> list[int]:
        """The ports at which nodes look for the first one, in this order."""
        if self.port is not None:
            return [self.port]
        start = int.from_bytes(self.place.digest[:4], "big")
        step = 1 + int.from_bytes(self.place.digest[4:6], "big")
        return [_FIRST_PORT + (start + step * k) % _PORTS for k in range(_CANDIDATES)]


def say(text: str) -> None:
    """Prints a line about the run; the standard output belongs to the command."""
    print(f"gpuperf: {text}", file=sys.stderr, flush=True)
