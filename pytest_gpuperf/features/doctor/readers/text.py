"""Files of /proc and /sys as text, numbers and lists."""

from __future__ import annotations

import os
import stat
from io import FileIO
from pathlib import Path

MOST_BYTES = 1 << 20  # a file of settings has a few lines


def read(path: Path) -> str | None:
    """The text of a file without the space around it; None if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except (OSError, ValueError):  # a ValueError: /sys answers some reads with EINVAL in the middle
        return None


def read_given(path: Path) -> str | None:
    """Return the text of a file that a user named, without the space around it; None if there is none.

    Raises:
        OSError: it is no regular file, which might never end, holds more than 1 MiB, or cannot be read.
    """
    try:
        _require_regular(os.stat(path))  # to open a device may do something
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with FileIO(descriptor, "rb") as stream:
        _require_regular(os.fstat(descriptor))
        raw = stream.read(MOST_BYTES + 1) or b""
    if len(raw) > MOST_BYTES:
        raise OSError(f"it holds more than {MOST_BYTES >> 20} MiB")
    return raw.decode(errors="replace").strip()


def _require_regular(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is no regular file")


def read_number(path: Path) -> int | None:
    """The number that a file holds; None if it cannot be read, or holds none."""
    text = read(path)
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        return None


def list_folder(path: Path) -> list[Path]:
    """What a folder holds, by name; empty if it cannot be read."""
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def spell(cores: tuple[int, ...]) -> str:
    """Cores as the kernel lists them: 0-3,8."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)
