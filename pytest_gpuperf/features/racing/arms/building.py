"""Builds the old code in its checkout, by a command of the user's."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from pytest_gpuperf.repository import CannotRace

_TAIL = 2000  # characters of the command's output in a message


def build_in(folder: Path, command: str, log: Path) -> None:
    """Runs a command of the shell in a checkout.

    Args:
        folder: of the checkout.
        command: of the user's.
        log: receives what it prints.

    Raises:
        CannotRace: it failed.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            shell=True,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = process.wait()
        except BaseException:  # Ctrl-C
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if code != 0:
        printed = log.read_text(errors="replace").strip()[-_TAIL:]
        raise CannotRace(
            f"--against-build {command!r} failed in {folder}: got exit code {code}, expected 0: mend the command for "
            f"that commit; it printed last:\n{printed or 'nothing'}"
        )
