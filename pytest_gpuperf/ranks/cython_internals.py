"""Names that Cython gives to what its modules share."""

from __future__ import annotations

_SHARED = ("_cython_", "cython_runtime")


def is_shared_by_cython(package: str) -> bool:
    """Whether a module that no import made has the types of all modules of one Cython: a rank makes its own."""
    return package.startswith(_SHARED)
