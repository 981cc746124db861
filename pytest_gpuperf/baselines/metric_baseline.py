"""All launches of one metric of one test, and what it is held against over the years."""

import math
import statistics
from dataclasses import asdict, dataclass
from typing import cast

from pytest_gpuperf.baselines.json_fields import Fields, finite
from pytest_gpuperf.figures.metric import Better

REDUCE = "max_over_ranks"
STAT = "median"


@dataclass(frozen=True, slots=True)
class LaunchFigure:
    """One launch's figure for one metric."""

    launch: str
    """Id of the launch, a key of Baselines.launches."""
    n: int
    """Samples."""
    median: float
    q1: float | None = None
    q3: float | None = None

    def __post_init__(self) -> None:
        """Refuses figures that have no logarithm."""
        for name in ("median", "q1", "q3"):
            figure = getattr(self, name)
            number = finite(figure)
            if (figure is not None or name == "median") and (number is None or number <= 0):
                raise ValueError(f"{name} of launch {self.launch!r} is {figure!r}, expected a finite number above 0")


@dataclass(frozen=True, slots=True)
class Anchor:
    """The centre that later ones are held against, so that many small losses do not add up unseen."""

    center: float
    commit: str
    at: str

    def __post_init__(self) -> None:
        """Refuses a centre that has no logarithm."""
        number = finite(self.center)
        if number is None or number <= 0:
            raise ValueError(f"center is {self.center!r}, expected a finite number above 0")


@dataclass(frozen=True, slots=True)
class MetricBaseline:
    """All launches of one metric of one test."""

    unit: str
    better: Better
    clock: str
    launches: tuple[LaunchFigure, ...]
    anchor: Anchor | None = None

    def __post_init__(self) -> None:
        """Refuses a baseline without a centre."""
        ids = [figure.launch for figure in self.launches]
        if not ids or len(set(ids)) < len(ids):
            raise ValueError(f"launches are {ids!r}, expected at least one, each once")
        if not math.isfinite(self.center):
            raise ValueError(f"launches have the centre {self.center!r}, expected a finite number")

    @property
    def center(self) -> float:
        """Median of the launches' medians."""
        return statistics.median(figure.median for figure in self.launches)

    @property
    def sigma_b(self) -> float:
        """Spread between launches: sample standard deviation of ln(median), 0.0 below 2 launches."""
        if len(self.launches) < 2:
            return 0.0
        return statistics.stdev(math.log(figure.median) for figure in self.launches)

    def to_json(self) -> dict[str, object]:
        """Plain JSON types; center and sigma_b are there for the reader and recomputed on load."""
        return {
            "unit": self.unit,
            "better": self.better,
            "clock": self.clock,
            "reduce": REDUCE,
            "stat": STAT,
            "launches": [asdict(figure) for figure in self.launches],
            "center": self.center,
            "sigma_b": self.sigma_b,
            **({} if self.anchor is None else {"anchor": asdict(self.anchor)}),
        }

    @classmethod
    def from_json(cls, data: object, where: str) -> "MetricBaseline":
        """Reads what to_json wrote.

        Raises:
            FieldError: Where data is anything else.
        """
        fields = Fields.of(data, where)
        fields.only("unit", "better", "clock", "reduce", "stat", "launches", "center", "sigma_b", "anchor")
        fields.choice("reduce", REDUCE)
        fields.choice("stat", STAT)
        return fields.built(
            lambda: cls(
                unit=fields.text("unit"),
                better=cast(Better, fields.choice("better", "higher", "lower")),
                clock=fields.text("clock"),
                launches=tuple(_figure(item) for item in fields.items("launches")),
                anchor=_anchor(fields.child("anchor")) if "anchor" in fields.values else None,
            )
        )


def _figure(fields: Fields) -> LaunchFigure:
    fields.only(*LaunchFigure.__dataclass_fields__)
    return fields.built(
        lambda: LaunchFigure(
            launch=fields.text("launch"),
            n=fields.integer("n"),
            median=fields.number("median"),
            q1=fields.optional_number("q1"),
            q3=fields.optional_number("q3"),
        )
    )


def _anchor(fields: Fields) -> Anchor:
    fields.only(*Anchor.__dataclass_fields__)
    return fields.built(
        lambda: Anchor(center=fields.number("center"), commit=fields.text("commit"), at=fields.text("at"))
    )
