"""The forms of curves, matrices, searches and summaries: what test reports, journals and results files have of them.

Whoever prints or draws one reads it as a mapping, and relies on what its form requires.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

from pytest_gpuperf.baselines.plain import OPTIONAL, Checked, read
from pytest_gpuperf.baselines.schema import Count
from pytest_gpuperf.figures.matrix import Matrix
from pytest_gpuperf.figures.metric import Better

Positive: TypeAlias = Annotated[float, Checked(lambda number: number > 0, "a number above 0")]


@dataclass(frozen=True, slots=True)
class RegimeForm:
    """A straight piece of a curve, as of ``figures.find_regimes``."""

    first: Count
    last: Count
    alpha: float
    beta: Positive | None
    """None if the time does not grow with the size."""
    residual: float


@dataclass(frozen=True, slots=True)
class DipForm:
    """A size whose bandwidth is below what its neighbours promise."""

    size: Count
    bandwidth: Positive
    promised: Positive


@dataclass(frozen=True, slots=True)
class CurveForm:
    """A sweep, as ``curves.make_curve`` writes it."""

    test: str
    op: str | None
    """None if the bandwidth is the size over the time."""
    world_size: Count
    sizes: tuple[Count, ...]
    seconds: tuple[Positive, ...]
    quartiles: tuple[tuple[float, float], ...]
    bandwidths: tuple[Positive, ...]
    half_size: Positive
    regimes: tuple[RegimeForm, ...]
    dips: tuple[DipForm, ...]

    def __post_init__(self) -> None:
        """Refuses a curve without a point, or with points of which a part is missing."""
        lengths = [len(values) for values in (self.sizes, self.seconds, self.quartiles, self.bandwidths)]
        if not self.sizes or len(set(lengths)) > 1:
            raise ValueError(
                f"got {lengths} sizes, seconds, quartiles and bandwidths, expected as many of each, one at least"
            )


@dataclass(frozen=True, slots=True)
class MatrixForm:
    """Metrics of pairs, as ``matrices.make_matrix`` writes them."""

    test: str
    name: str
    rows: tuple[tuple[float | None, ...], ...]
    unit: str
    better: Better
    names: tuple[str, ...] = field(default=(), metadata=OPTIONAL)
    """Results of earlier versions have none."""

    def __post_init__(self) -> None:
        """Refuses what is no table of pairs."""
        Matrix.of(self.rows, self.unit, self.better, self.names)


@dataclass(frozen=True, slots=True)
class TrialForm:
    """One configuration of a search."""

    name: str
    seconds: Positive | None
    """None if it did not run."""
    quartiles: tuple[float, float] | None
    rate: float | None
    mfu: float | None
    peak_bytes: float | None
    host_bytes: float | None
    frontier: bool
    reason: str


@dataclass(frozen=True, slots=True)
class SearchForm:
    """A table of configurations, as ``searches.make_table`` writes it."""

    test: str
    name: str
    world_size: int
    trials: tuple[TrialForm, ...]

    def __post_init__(self) -> None:
        """Refuses a search of which nothing ran."""
        if all(trial.seconds is None for trial in self.trials):
            raise ValueError(f"got {len(self.trials)} trials without seconds, expected one at least that ran")


@dataclass(frozen=True, slots=True)
class SummaryForm:
    """What a run came to as a whole, as ``acceptance.lines.make_document`` writes it."""

    title: str
    verdict: str
    partial: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, str, str], ...]
    remarks: tuple[str, ...]


def require(form: type[Any], data: Iterable[Mapping[str, Any]], where: str) -> None:
    """Require each of these mappings to have a form.

    Args:
        form: of each; a dataclass.
        data: the mappings.
        where: names the place of the data in messages.

    Raises:
        FieldError: one has another form.
    """
    for number, one in enumerate(data):
        read(form, one, f"{where}[{number}]")
