"""What the plugin can do beyond running, timing, judging and recording; each folder can be deleted.

A feature has a module ``plugin`` with hooks, or a module ``command`` with a command of ``python -m pytest_gpuperf``, or
both. The first is imported by every run of pytest, the second by every command, so both import the rest of their
feature only when it is used. The core imports none, and no feature imports another.
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType


def modules(name: str) -> Iterator[tuple[str, ModuleType]]:
    """Yields each feature that has a module of this name, with the module, in alphabetical order."""
    for folder in sorted(Path(__file__).parent.iterdir()):
        if (folder / f"{name}.py").is_file():
            yield folder.name, import_module(f"{__name__}.{folder.name}.{name}")
