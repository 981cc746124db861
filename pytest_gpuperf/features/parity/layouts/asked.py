"""What the user asked for: a model, batches, layouts. Needs no torch."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from pytest_gpuperf.report.command_error import CommandError

AXES = ("ddp", "fsdp", "cp", "tp")
"""Axes of a layout, the outermost first."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a model is spread over ranks, such as ``fsdp2xtp2``."""

    name: str
    sizes: Mapping[str, int] = field(hash=False)
    """Ranks along each axis; the axes are those of ``AXES``, in their order."""

    @property
    def world(self) -> int:
        """Number of ranks."""
        return math.prod(self.sizes.values())

    @property
    def mesh(self) -> dict[str, int]:
        """The axes with more than one rank; never empty."""
        return {axis: size for axis, size in self.sizes.items() if size > 1} or {"ddp": 1}

    @property
    def shares(self) -> int:
        """Into how many parts rows and sequences are cut."""
        return self.world // self.sizes["tp"]


def parse_layout(text: str) -> Layout:
    """Reads a layout.

    Raises:
        ValueError: it names no layout.
    """
    sizes = dict.fromkeys(AXES, 1)
    for piece in text.split("x"):
        found = re.fullmatch(r"(ddp|fsdp|cp|tp)([1-9]\d{0,3})", piece)
        if found is None or sizes[found[1]] != 1:
            raise ValueError(
                f"layout {text!r} cannot be read: write ddp, fsdp, cp or tp with a number of ranks, joined by x, as in "
                "fsdp2xtp2; each once"
            )
        sizes[found[1]] = int(found[2])
    return Layout(text, sizes)


@dataclass(frozen=True, slots=True)
class Subject:
    """The user's functions by ``module:name``, so that each process imports them itself."""

    build: str
    batch: str
    loss: str = ""
    optimizer: str = ""
    plan: str = ""
    folder: str = ""
    """Where the modules are."""
    steps: int = 2
    seed: int = 0

    def function(self, role: str) -> Callable[..., Any] | None:
        """One of the functions; None if the user gave none.

        Args:
            role: ``build``, ``batch``, ``loss``, ``optimizer`` or ``plan``.

        Raises:
            CommandError: there is no such function.
        """
        name: str = getattr(self, role)
        return import_function(name, role, Path(self.folder)) if name else None

    def require(self, role: str) -> Callable[..., Any]:
        """One of the functions that the user must give."""
        found = self.function(role)
        assert found is not None, role
        return found


def import_function(name: str, role: str, folder: Path) -> Callable[..., Any]:
    """Imports a function.

    Args:
        name: ``module:name``.
        role: names the option in messages.
        folder: is searched first.

    Raises:
        CommandError: the name cannot be read, or there is no such function.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise CommandError(f"{role} is {name!r}, expected module:function, as in mymodel:build")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise CommandError(
            f"{role} {name!r} cannot be imported from {folder}: {error}: run the command where {module!r} can be "
            "imported, or set PYTHONPATH"
        ) from None
    if not callable(found):
        raise CommandError(f"{role} {name!r} is a {type(found).__name__}, expected a function")
    return found  # type: ignore[no-any-return]
