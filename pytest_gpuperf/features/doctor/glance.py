"""One line of the diagnosis for a run: in its header if it is there in time, else at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pytest_gpuperf.features.doctor.diagnosis import diagnose
from pytest_gpuperf.features.doctor.facts import Facts
from pytest_gpuperf.features.doctor.lines import COMMAND, format_header, list_odd

SECONDS = 0.1
"""A header does not wait longer: the vendor's library takes a second to open on a machine without persistence mode."""


class Glance:
    """Looks at the machine in a thread, which no run waits for."""

    def __init__(self, look: Callable[[], Facts]) -> None:
        """Starts to look.

        Args:
            look: Gathers the facts.
        """
        self._look = look
        self._line = ""
        self._matters = False
        self._told = False
        self._thread = threading.Thread(target=self._run, name="gpuperf-doctor", daemon=True)
        self._thread.start()

    def header(self, seconds: float = SECONDS) -> str:
        """Return the worst finding in a line; empty if it is not known in time.

        Args:
            seconds: How long to wait.
        """
        self._thread.join(seconds)
        self._told = not self._thread.is_alive()
        return self._line if self._told else ""

    def late(self) -> str:
        """Return a finding that came too late for the header; empty if there is none that matters."""
        return self._line if self._matters and not self._told and not self._thread.is_alive() else ""

    def _run(self) -> None:
        try:
            findings = diagnose(self._look())
            self._line, self._matters = format_header(findings), bool(list_odd(findings))
        except Exception as error:  # a header never fails a run: the command shows the whole error
            self._line = f"doctor: failed with {type(error).__name__}; see {COMMAND}"
