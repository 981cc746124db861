"""One line of the diagnosis for the header of a run, in no more time than a header may take."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pytest_gpuperf.doctor.diagnosis import diagnose
from pytest_gpuperf.doctor.facts import Facts
from pytest_gpuperf.doctor.lines import COMMAND, header

SECONDS = 0.1
"""A run does not wait longer: the vendor's library takes a second to open on a machine without persistence mode."""


def glance(look: Callable[[], Facts], seconds: float = SECONDS) -> str:
    """The worst finding in a line; that there is none in time, if gathering takes longer or fails.

    Args:
        look: Gathers the facts; runs in a thread, whose result is dropped if it comes late.
        seconds: How long to wait.
    """
    found: list[str] = []

    def run() -> None:
        try:
            found.append(header(diagnose(look())))
        except Exception as error:  # a header never fails a run: the command shows the whole error
            found.append(f"doctor: failed with {type(error).__name__}; see {COMMAND}")

    thread = threading.Thread(target=run, name="gpuperf-doctor", daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else f"doctor: not done within {seconds * 1e3:.0f} ms; see {COMMAND}"
