"""Metrics as losses and back: what the rule computes with, and what a reader is told."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from pytest_gpuperf.figures.metric import Better, Metric
from pytest_gpuperf.verdicts.outcome import Effect, Outcome, Reason
from pytest_gpuperf.verdicts.race import Sequential
from pytest_gpuperf.verdicts.share import Share
from pytest_gpuperf.verdicts.verdict import Verdict

LARGEST_LOSS = 700.0  # its exponential is still a float


def compute_loss_log(value: float, better: Better) -> float:
    """The logarithm of a metric, oriented so that larger is worse.

    A time, and the throughput made of it, get one verdict so.
    """
    return math.log(value) if better == "lower" else -math.log(value)


def compute_loss_logs(figures: Sequence[Metric]) -> list[float]:
    """Return the logarithms of several metrics."""
    return [compute_loss_log(figure.value, figure.better) for figure in figures]


def convert_loss_to_change(loss: float, better: Better) -> float:
    """The change of a metric that lost so much, as a fraction, above 0 is better."""
    return math.expm1(min(-loss, LARGEST_LOSS)) if better == "higher" else -math.expm1(min(loss, LARGEST_LOSS))


def make_share(found: Sequential, better: Better, launches: int) -> Share:
    """What launches of one arm came to.

    Args:
        found: The rule's answer.
        better: Which way the metric is better.
        launches: Of the arm.
    """
    low, high = sorted((convert_loss_to_change(found.lower, better), convert_loss_to_change(found.upper, better)))
    return Share(convert_loss_to_change(found.loss, better), (low, high), launches)


def merge_launches(figures: Sequence[Metric]) -> Metric:
    """The metric of several launches: their median, without what is one launch's own."""
    middle = statistics.median(figure.value for figure in figures)
    return replace(figures[0], value=middle, q1=None, q3=None, interval=_find_interval(figures))


def apply_request(verdict: Verdict) -> Verdict:
    """The worse of what a metric came to and of what its test asks for, by the metric's interval."""
    metric = verdict.metric
    if metric.at_least is None or metric.interval is None:
        return verdict
    low, high = metric.interval
    if high < metric.at_least:
        return replace(verdict, outcome=Outcome.MISSED, reason=None)
    passes = verdict.effect is Effect.PASSES
    return verdict.leave_undecided(Reason.ASKED) if low < metric.at_least and passes else verdict


def _find_interval(figures: Sequence[Metric]) -> tuple[float, float] | None:
    """Return the interval of the median launch: it is below a bound if those of most launches are."""
    intervals = [figure.interval for figure in figures if figure.interval is not None]
    if len(intervals) < len(figures):
        return None
    return statistics.median(low for low, _ in intervals), statistics.median(high for _, high in intervals)
