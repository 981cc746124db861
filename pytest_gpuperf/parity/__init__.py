"""Judges numbers: whether ranks compute what one device computes, up to rounding, and if not, why.

Importing this package imports neither torch nor pytest.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_gpuperf.parity.census import Census, census
    from pytest_gpuperf.parity.fixture import Parity
    from pytest_gpuperf.parity.records import Trace
    from pytest_gpuperf.parity.report import Report
    from pytest_gpuperf.parity.watching import watch

__all__ = ["Census", "Parity", "Report", "Trace", "census", "watch"]

_HOMES = {
    "Census": "census",
    "Parity": "fixture",
    "Report": "report",
    "Trace": "records",
    "census": "census",
    "watch": "watching",
}


def __getattr__(name: str) -> Any:
    """Imports the public name's own module when the name is used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'pytest_gpuperf.parity' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"pytest_gpuperf.parity.{_HOMES[name]}"), name)
    globals()[name] = value  # a module of the same name, once imported, would hide the object
    return value
