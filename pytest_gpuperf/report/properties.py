"""How a test's verdicts travel with its report: to the controller, to the summaries, and into JUnit's XML."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from pytest_gpuperf.baselines.plain import make_mismatch, make_plain, read
from pytest_gpuperf.ranks.postmortem import PostMortem
from pytest_gpuperf.report.change import show_change
from pytest_gpuperf.verdicts.verdict import Verdict

PROPERTY = "gpuperf"
"""Name of the report's user property that carries a test's verdicts as JSON."""

UNCHECKED_PROPERTY = "gpuperf_unchecked"
"""Name of the one that carries, as JSON, the metrics that have a baseline and that the test did not check."""

FRESH_LAUNCH_PROPERTY = "gpuperf_fresh_launch"
"""Name of the one that names the fresh launch, and its phase, by which a test failed, and not by its verdicts."""


def forget_properties(item: pytest.Item) -> None:
    """Takes away what an earlier attempt has told of itself, where a plugin runs the item again."""
    item.user_properties[:] = [entry for entry in item.user_properties if not str(entry[0]).startswith(PROPERTY)]


def is_final(report: pytest.TestReport) -> bool:
    """Whether a report is of what became of a test, and not of an attempt that a plugin makes again."""
    return report.passed or report.failed or report.skipped


def make_verdict_properties(verdicts: Iterable[Verdict]) -> list[tuple[str, str]]:
    """The user properties of a test with these verdicts: one JSON for ourselves, plain numbers for JUnit's readers."""
    told = list(verdicts)
    whole = (PROPERTY, json.dumps(make_plain(told)))
    return [whole, *(entry for verdict in told for entry in _make_plain_properties(verdict))]


def read_verdicts(report: pytest.TestReport) -> list[Verdict] | None:
    """The verdicts that a report carries; None if it is of no perf test that came to its end."""
    carried = [value for name, value in report.user_properties if name == PROPERTY and _is_ours(value)]
    if not carried:
        return None
    return [read(Verdict, data, "verdict") for value in carried for data in json.loads(str(value))]


def _is_ours(value: object) -> bool:
    # A test may record a property of the same name.
    try:
        told = json.loads(str(value))
    except ValueError:
        return False
    return isinstance(told, list) and all(isinstance(verdict, dict) and "metric_name" in verdict for verdict in told)


def make_json_property(name: str, values: Sequence[Any]) -> list[tuple[str, str]]:
    """Return the user property of this name that carries these values as JSON; none without values."""
    return [(name, json.dumps(list(values)))] if values else []


def read_list(report: pytest.TestReport, name: str) -> list[Any]:
    """Return the values that a report carries under this name.

    Raises:
        ValueError: what it carries is no JSON, or no list.
    """
    texts = [value for given, value in report.user_properties if given == name]
    return [value for text in texts for value in _list_of(text)]


def _list_of(text: object) -> list[Any]:
    """Return the list that a property carries as JSON."""
    values = json.loads(str(text))
    if not isinstance(values, list):
        raise make_mismatch("property", values, "a list")
    return values


def make_unchecked_properties(names: Sequence[str]) -> list[tuple[str, str]]:
    """The user properties of a test that did not check these metrics, of which it has baselines."""
    return make_json_property(UNCHECKED_PROPERTY, names)


def read_unchecked(report: pytest.TestReport) -> list[str]:
    """The metrics with a baseline that a test did not check."""
    return [str(name) for name in read_list(report, UNCHECKED_PROPERTY)]


def make_launch_properties(nodeid: str, when: str) -> list[tuple[str, str]]:
    """The user properties of a test that failed in this phase of a fresh launch."""
    return [(FRESH_LAUNCH_PROPERTY, f"{nodeid}, {when}")]


def has_failed_by_itself(report: pytest.TestReport, *, failing: bool) -> bool:
    """Whether a test failed for another reason than its verdicts.

    Args:
        report: Of one of its phases.
        failing: Whether its verdicts would fail it.
    """
    fresh = any(name == FRESH_LAUNCH_PROPERTY for name, _ in report.user_properties)
    return report.failed and (report.when != "call" or fresh or not failing)


def make_failure_properties(failure: PostMortem) -> list[tuple[str, str]]:
    """The user properties of a test whose run failed: which rank, where, and how the others ended."""
    rank = [] if failure.rank is None else [("gpuperf_rank", str(failure.rank))]
    place = [("gpuperf_place", failure.place)] if failure.place else []
    return [*rank, ("gpuperf_cause", failure.cause), *place, ("gpuperf_ranks", "\n".join(failure.story))]


def _make_plain_properties(verdict: Verdict) -> list[tuple[str, str]]:
    prefix = f"{PROPERTY}.{verdict.metric_name}"
    figures: list[tuple[str, str]] = [
        (f"{prefix}.value", _format_number(verdict.metric.value)),
        (f"{prefix}.unit", verdict.metric.unit),
        (f"{prefix}.verdict", verdict.outcome.value),
    ]
    if verdict.baseline is not None:
        figures.append((f"{prefix}.baseline", _format_number(verdict.baseline.center)))
    if change := show_change(verdict):
        figures.append((f"{prefix}.change", change))
    return figures


def _format_number(value: float) -> str:
    # A program reads it: SI units, no prefix, more digits than any launch repeats.
    return f"{value:.6g}"
