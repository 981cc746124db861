"""The worst that is wrong with the machine, in a line of pytest's header or, if it comes late, at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpuperf.features.doctor.glance import Glance
    from pytest_gpuperf.run.session import Session

GLANCE: pytest.StashKey[Glance] = pytest.StashKey()
"""The look at a machine with GPUs, on the configuration from the header on."""


def pytest_gpuperf_header(config: pytest.Config, run: Session) -> Sequence[str]:
    """Returns the line, if the machine has GPUs that the run uses, and it is known in time."""
    machine = run.machine
    if not machine.gpus or run.capacity.clustered:
        return []
    from pytest_gpuperf.features.doctor.gather import gather
    from pytest_gpuperf.features.doctor.glance import Glance

    config.stash[GLANCE] = glance = Glance(lambda: gather(machine.devices))
    return [glance.header()]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Reports what was not known when the header was printed."""
    if GLANCE in config.stash and (line := config.stash[GLANCE].late()):
        terminalreporter.write_line(f"gpuperf: {line}")
