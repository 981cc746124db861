"""The facts behind a hardware key, as files keep them, and what of them makes metrics of two machines incomparable."""

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, TypeAlias

from pytest_gpuperf.baselines.plain import Told, cut
from pytest_gpuperf.figures.metric import convert_to_finite

Scalar: TypeAlias = Annotated[str | int | float | bool, Told("a string, a finite number, true, false or null")] | None

POWER_LIMIT = "power_limit_w"
FOLDER = "keep baselines of these GPUs in a folder of their own (--baselines DIR)"

_ABOUT = {"mem_gib": 1.0}  # rounded, and how much of it a driver keeps for itself differs by version
MANY = 10  # facts that a message names
_DIGITS = 1e-4  # a file keeps five


def describe_difference(stored: Mapping[str, Scalar], found: Mapping[str, Scalar]) -> str | None:
    """What was found and what is stored, where they differ; None where metrics of both can be compared.

    What either does not tell differs from nothing.
    """
    names = _list_differing(stored, found)
    if not names:
        return None
    got, expected = (
        ", ".join(f"{cut(name)} {cut(repr(facts[name]))}" for name in names[:MANY]) for facts in (found, stored)
    )
    return f"got GPUs with {got}, expected {expected}"


def describe_cure(stored: Mapping[str, Scalar], found: Mapping[str, Scalar]) -> str:
    """What to do where they differ."""
    limit = stored.get(POWER_LIMIT)
    if convert_to_finite(limit) is None or _list_differing(stored, found) != [POWER_LIMIT]:
        return f"measure on such GPUs, or {FOLDER}"
    return f"measure with its power limit (nvidia-smi -pl {limit:g}), or {FOLDER}"


def unite(several: Iterable[Mapping[str, Scalar]]) -> dict[str, Scalar]:
    """Returns the facts of several comparable machines; each is from the first machine that knows it."""
    facts: dict[str, Scalar] = {}
    for told in several:
        facts |= {name: value for name, value in told.items() if facts.get(name) is None}
    return facts


def _list_differing(stored: Mapping[str, Scalar], found: Mapping[str, Scalar]) -> list[str]:
    return [name for name in sorted(stored.keys() & found.keys()) if not _is_alike(name, stored[name], found[name])]


def _is_alike(name: str, one: Scalar, other: Scalar) -> bool:
    if one is None or other is None:
        return True
    first, second = convert_to_finite(one), convert_to_finite(other)
    if first is None or second is None:
        return one == other
    return math.isclose(first, second, rel_tol=_DIGITS, abs_tol=_ABOUT.get(name, 0.0))
