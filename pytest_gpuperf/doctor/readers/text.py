"""Files of /proc and /sys as text, numbers and lists."""

from __future__ import annotations

from pathlib import Path


def read(path: Path) -> str | None:
    """The text of a file without the space around it; None if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except (OSError, ValueError):  # a ValueError: /sys answers some reads with EINVAL in the middle
        return None


def number(path: Path) -> int | None:
    """The number that a file holds; None if it cannot be read, or holds none."""
    text = read(path)
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        return None


def listed(path: Path) -> list[Path]:
    """What a folder holds, by name; empty if it cannot be read."""
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def spelled(cores: tuple[int, ...]) -> str:
    """Cores as the kernel lists them: 0-3,8."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)
