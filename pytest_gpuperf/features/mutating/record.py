"""What a rank sees of one program: the sites, what they sent, and how many calls a fault altered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from pytest_gpuperf.features.mutating import digests
from pytest_gpuperf.features.mutating.faults import Calls, Fault, Site


def is_captured() -> bool:
    """Whether a CUDA graph captures what is called now: it is recorded and not run, so there are no values to see."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


class Record:
    """Takes note of calls, and answers which of them are to be altered."""

    def __init__(self, fault: Fault | None) -> None:
        """Nothing has been seen.

        Args:
            fault: that is made; None to see only.
        """
        self.fault = fault
        self.sites: dict[Site, Calls] = {}
        self.applied = 0
        """How many calls were altered."""
        self.changed = 0
        """How many of these came to other bits than without the fault."""
        self.error: BaseException | None = None
        """Why a call could not be altered: torch drops what a callback of its work raises."""
        self.lock = threading.Lock()
        self._sent: dict[Site, Any] = {}

    def see(self, site: Site, made: Callable[[], Calls]) -> Calls:
        """Takes note of one call at a site, of whose first call ``made`` returns what is known."""
        calls = self.sites.get(site)
        if calls is None:
            calls = self.sites[site] = made()
            self._sent[site] = digests.make_digest()
        calls.count += 1
        return calls

    def find_sent_digest(self, site: Site) -> Any:
        """The digest of what a site sends, to which its calls add."""
        return self._sent[site]

    def is_faulty(self, site: Site) -> bool:
        """Whether the call that a site has just made belongs to the fault."""
        fault, calls = self.fault, self.sites[site]
        if fault is None or fault.site != site or calls.group_size < 2:
            return False
        return fault.call in (0, calls.count)

    def digest(self) -> bytes:
        """A digest of what each site sent; sites of several threads have no order."""
        whole = digests.make_digest()
        for site in sorted(self._sent):
            whole.update(f"{site.operation}{site.line}".encode() + self._sent[site].digest())
        return whole.digest()
