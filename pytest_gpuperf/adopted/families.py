"""The harnesses whose classes can be adopted."""

from __future__ import annotations

from pytest_gpuperf.adopted.calls import Family
from pytest_gpuperf.adopted.torch_testing_internals import Continuous, Processes

FAMILIES: tuple[Family, ...] = (Processes(), Continuous())


def family_of(cls: type) -> Family | None:
    """The harness of the class; None if it is of none that can be adopted."""
    return next((family for family in FAMILIES if family.adopts(cls)), None)


def family_named(name: str) -> Family:
    """The harness of this name."""
    return next(family for family in FAMILIES if family.name == name)
