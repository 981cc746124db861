"""What the plugin can do beyond running, timing, judging and recording; each folder can be deleted.

A feature has a module ``plugin`` with hooks, or a module ``command`` with a command of ``python -m pytest_gpuperf``, or
both. The first is imported by every run of pytest, the second by every command, so both import the rest of their
feature only when it is used. The core imports none. A feature imports another only if it is made of it: its ``NEEDS``
says so, and without what it needs it is not there either. ``PUBLIC`` has a feature's names that ``pytest_gpuperf`` has,
with the modules that define them.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpuperf.report.shown import Shown

_FOLDER = Path(__file__).parent


def iterate_modules(name: str) -> Iterator[tuple[str, ModuleType]]:
    """Yields each feature that has a module of this name, with the module, in alphabetical order."""
    for feature, package in _iterate_packages(f"{name}.py"):
        yield feature, import_module(f"{package.__name__}.{name}")


def find_public(name: str) -> str | None:
    """Returns the module that defines this public name of a feature; None if no feature has the name."""
    homes = (
        f"{package.__name__}.{package.PUBLIC[name]}"
        for _, package in _iterate_packages("__init__.py")
        if name in getattr(package, "PUBLIC", {})
    )
    return next(homes, None)


def list_shown() -> list[Shown]:
    """Returns the kinds of what tests show, those of features behind those of the core."""
    from pytest_gpuperf.report.kinds import KINDS

    added = [
        kind
        for _, plugin in iterate_modules("plugin")
        if hasattr(plugin, "pytest_gpuperf_shows")
        for kind in plugin.pytest_gpuperf_shows()
    ]
    return [*KINDS, *sorted(added, key=lambda kind: kind.name)]


def _iterate_packages(file: str) -> Iterator[tuple[str, ModuleType]]:
    """Yields each feature that has this file and what the feature needs, with its package."""
    for path in sorted(_FOLDER.glob(f"*/{file}")):
        package = import_module(f"{__name__}.{path.parent.name}")
        if all((_FOLDER / need / "__init__.py").is_file() for need in getattr(package, "NEEDS", ())):
            yield path.parent.name, package
