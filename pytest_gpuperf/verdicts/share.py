"""One part of a change, as a value that travels with its verdict."""

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from pytest_gpuperf.baselines.plain import Checked, Told
from pytest_gpuperf.baselines.schema import Count

_Interval: TypeAlias = Annotated[
    tuple[float, float],
    Checked(lambda ends: ends[0] <= ends[1], "the smaller first"),
    Told("two finite numbers, the smaller first, or null"),
]


@dataclass(frozen=True, slots=True)
class Share:
    """One part of a change, and how surely it is known."""

    change: float
    """As a fraction; above 0 is better, whichever direction that is."""
    interval: _Interval
    """The change's interval of 95 %."""
    launches: Count
    """How many launches of one arm it rests on."""
