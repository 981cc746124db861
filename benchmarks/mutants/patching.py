"""Has a module imported with a fault in its source; no file changes. Runs in any process, before torch is imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

from benchmarks.mutants.fault import Fault


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles the patched source of its module, and never the bytecode that is stored."""

    def __init__(self, fullname: str, path: str, fault: Fault, reached: Path) -> None:
        super().__init__(fullname, path)
        self._fault = fault
        self._reached = reached

    def get_code(self, fullname: str) -> CodeType:
        """The module's code, with the fault."""
        path = self.get_filename(fullname)
        source = self._fault.applied_to(Path(path).read_text(encoding="utf-8"))
        self._reached.touch()
        return compile(source, path, "exec", dont_inherit=True)


class Patching(importlib.abc.MetaPathFinder):
    """Finds the fault's module before anybody else does."""

    def __init__(self, fault: Fault, reached: Path) -> None:
        """Takes the fault, and a file to make when its module is imported."""
        self._fault = fault
        self._reached = reached

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's spec with a loader that patches; None for all other modules."""
        if fullname != self._fault.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            return None
        spec.loader = _Loader(fullname, spec.origin, self._fault, self._reached)
        spec.cached = None
        return spec


def install(fault: Fault, reached: Path) -> None:
    """Patches the module once it is imported in this process.

    Raises:
        RuntimeError: it is imported already.
    """
    if fault.module in sys.modules:
        raise RuntimeError(f"{fault.module} was imported before the fault {fault.name!r} could be put into it")
    sys.meta_path.insert(0, Patching(fault, reached))
