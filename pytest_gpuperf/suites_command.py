"""``python -m pytest_gpuperf suites``: runs the suites that the package brings, or those of its checkout."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
INSTALLED = PACKAGE / "installed_suites"
"""The root of the suites of a wheel. Its modules and node ids are called as in a checkout, so that records match."""


def find_suites_root(package: Path = PACKAGE) -> Path | None:
    """Returns the folder that holds ``suites`` and their configuration; None if there are none.

    Args:
        package: the folder of this package.
    """
    roots = (package / INSTALLED.name, package.parent)
    return next((root for root in roots if (root / "suites" / "conftest.py").is_file()), None)


def make_suites_command(arguments: Sequence[str], root: Path, folder: Path) -> list[str]:
    """Returns the command that runs the suites of this root with the user's arguments for pytest.

    Baselines and pytest's cache belong to the user: they lie in the current folder, and not beside the package.

    Args:
        arguments: for pytest, as the user typed them.
        root: the folder that holds ``suites``.
        folder: the current one.
    """
    installed = root.name == INSTALLED.name
    ours = ["-c", str(root / ("pytest.ini" if installed else "pyproject.toml")), f"--rootdir={root}"]
    if installed:
        ours += ["-o", f"cache_dir={folder / '.pytest_cache'}"]
    if not any(argument.partition("=")[0] == "--baselines" for argument in arguments):
        ours.append(f"--baselines={folder / 'baselines'}")
    return [sys.executable, "-m", "pytest", str(root / "suites"), *ours, *arguments]


def run_suites(arguments: Sequence[str]) -> int:
    """Becomes the pytest process that runs the suites; returns 1 only if there are none.

    Args:
        arguments: for pytest.
    """
    root = find_suites_root()
    if root is None:
        print(
            f"error: {PACKAGE} has no suites: install the wheel of pytest-gpuperf, or run pytest in a checkout",
            file=sys.stderr,
        )
        return 1
    command = make_suites_command(arguments, root, Path.cwd())
    sys.stdout.flush()
    os.execv(command[0], command)
