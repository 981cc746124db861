"""The harnesses whose classes can be adopted."""

from __future__ import annotations

from pytest_gpuperf.features.adopted.calls import Family
from pytest_gpuperf.features.adopted.deepspeed_internals import DeepSpeed
from pytest_gpuperf.features.adopted.plain import Plain
from pytest_gpuperf.features.adopted.torch_testing_internals import Continuous, Processes

FAMILIES: tuple[Family, ...] = (Processes(), Continuous(), DeepSpeed())
_PLAIN = Plain()
_BASES = frozenset({*(family.name for family in FAMILIES), "MultiThreadedTestCase"})


def find_family(cls: type) -> Family | None:
    """The harness of the class; None if it is of none that can be adopted."""
    return next((family for family in FAMILIES if family.adopts(cls)), None)


def list_mixed(cls: type) -> list[str]:
    """The names of the harnesses that the class derives from, if they are several; each would start processes."""
    names = [base.__name__ for base in cls.__mro__ if base.__name__ in _BASES]
    return names if len(names) > 1 else []


def find_plain_family(cls: type) -> Family | None:
    """The family of a class that derives from no harness; None if it is one of unittest's."""
    return _PLAIN if _PLAIN.adopts(cls) else None


def find_family_by_name(name: str) -> Family:
    """The harness of this name."""
    return next(family for family in (*FAMILIES, _PLAIN) if family.name == name)
