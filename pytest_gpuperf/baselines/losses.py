"""Losses that an update would write, and metrics of two entries that can be held against one another."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_gpuperf.baselines.plain import cut
from pytest_gpuperf.baselines.schema import Anchor, Change, MetricBaseline, TestBaseline
from pytest_gpuperf.figures.comparable import find_mismatch
from pytest_gpuperf.figures.metric import Better


@dataclass(frozen=True, slots=True)
class Loss:
    """A metric whose new centre is worse than an earlier one by more than the bound."""

    test: str
    name: str
    unit: str
    old: float
    new: float
    change: float
    """Relative to the old centre, below 0."""
    bound: float
    anchor: Anchor | None = None
    """The anchor, if the old centre is its own; None if it is the stored one."""


def find_losses(test: str, old: TestBaseline, new: TestBaseline, minimum_slowdown: float) -> list[Loss]:
    """Metrics that are worse than what is stored, or than their anchor, by more than the bound.

    The bound is what a run has to find. It does not grow with the spread: one bad launch, or launches of a slower
    program among the others, would make it so wide that nothing is a loss.

    Args:
        test: Node id.
        old: What is stored.
        new: What would replace it.
        minimum_slowdown: The bound, as a ratio minus 1.
    """
    found = []
    for name, metric in find_comparable(old, new).items():
        center = new.metrics[name].center
        earlier: list[tuple[float, Anchor | None]] = [(metric.center, None)]
        if metric.anchor is not None:
            earlier.append((metric.anchor.center, metric.anchor))
        for before, anchor in earlier:
            if compute_gain(metric.better, before, center) < -math.log1p(minimum_slowdown):
                change = compute_change(metric.better, before, center)
                found.append(Loss(test, name, metric.unit, before, center, change, minimum_slowdown, anchor))
                break
    return found


def find_comparable(old: TestBaseline, new: TestBaseline) -> Mapping[str, MetricBaseline]:
    """The old metrics that the new entry has too, of the same unit, direction and clock."""
    return {
        name: metric
        for name, metric in old.metrics.items()
        if name in new.metrics and not describe_mismatch(name, metric, new.metrics[name])
    }


def describe_mismatch(name: str, one: MetricBaseline, other: MetricBaseline) -> str:
    """Why metrics of the two cannot be compared; empty where they can."""
    what = find_mismatch(one, other)
    return f"{what} of {cut(name)} was {cut(getattr(one, what))!r} and is {cut(getattr(other, what))!r}" if what else ""


def compute_gain(better: Better, old: float, new: float) -> float:
    """The logarithm of by how much the new metric is better."""
    return math.log(new / old) if better == "higher" else math.log(old / new)


def find_changes(old: TestBaseline, new: TestBaseline) -> dict[str, Change]:
    """The centres before and after, of the metrics that can be compared."""
    return {
        name: (metric.center, new.metrics[name].center)
        for name, metric in find_comparable(old, new).items()
        if metric.center != new.metrics[name].center
    }


def compute_change(better: Better, old: float, new: float) -> float:
    """The new metric relative to the old one, as a fraction; above 0 is better, whichever direction that is."""
    return new / old - 1 if better == "higher" else 1 - new / old
