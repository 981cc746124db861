"""How rare a silent corruption a soak would have seen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

PROPERTY = "soak "
"""What the names of a soak's properties begin with; the kind of operation follows."""
CHANCE = 0.95


def compute_seen_power(compared: int) -> int | None:
    """Return the largest k for which a fault of 1 in 10^k operations is seen with 95 %; None if there is none.

    So many comparisons all miss such a fault with (1 - 10^-k)^n, which is to be 5 % at most.

    Args:
        compared: operations whose results were compared.
    """
    power = None
    while (1 - 10.0 ** -((power or 0) + 1)) ** compared <= 1 - CHANCE:
        power = (power or 0) + 1
    return power


def say_soaked(properties: Iterable[Mapping[str, int | float | str]]) -> str:
    """Say what a soak compared, and what it would have seen; empty without a soak.

    Args:
        properties: what each test recorded.
    """
    compared: dict[str, int] = {}
    for told in properties:
        for name, value in told.items():
            if name.startswith(PROPERTY) and isinstance(value, int):
                kind = name.removeprefix(PROPERTY)
                compared[kind] = compared.get(kind, 0) + value
    powers = {kind: power for kind, count in compared.items() if (power := compute_seen_power(count)) is not None}
    if not powers:
        return ""
    counts = ", ".join(f"{_round(count)} {kind}" for kind, count in compared.items())
    kinds = ", ".join(f"10^{power} {kind}" for kind, power in powers.items())
    return f"soak: {counts} right to the bit; a fault that corrupts 1 of {kinds} is seen with 95 %"


def _round(count: int) -> str:
    """Two digits: 160 000."""
    digits = max(0, math.floor(math.log10(count)) - 1) if count else 0
    return f"{round(count, -digits):,}".replace(",", " ")
