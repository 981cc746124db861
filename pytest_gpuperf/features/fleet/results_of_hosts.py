"""The metrics of many hosts, from the results of their runs."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_gpuperf.baselines import results
from pytest_gpuperf.baselines.match import FOLDER, describe_difference
from pytest_gpuperf.baselines.results import ResultsError
from pytest_gpuperf.baselines.schema import BaselineError, Baselines, MetricBaseline, require_figures
from pytest_gpuperf.features.fleet.component import Component, find_component
from pytest_gpuperf.figures.metric import Better


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric of one test on every host that measured it."""

    test: str
    name: str
    unit: str
    better: Better
    values: Mapping[str, float]
    """By host: the median of its launches."""
    component: Component = field(default_factory=lambda: Component("host"))


@dataclass(frozen=True, slots=True)
class Fleet:
    """Hosts of one hardware key and what they measured."""

    hardware_key: str
    hosts: tuple[str, ...]
    figures: tuple[Figure, ...]
    left_out: tuple[str, ...] = ()
    """Metrics that some hosts measured otherwise than most: another test body, unit, direction or clock."""


_Form = tuple[str, str, Better, str]
"""What must agree before metrics of two hosts are compared: body hash, unit, direction, clock."""


def load(paths: Sequence[Path]) -> Fleet:
    """Reads the results of ``--gpuperf-json``, one file or several of each host.

    Raises:
        ResultsError: A file cannot be used, has no metrics, or is of other hardware than the first.
    """
    first: tuple[Path, Baselines] | None = None
    measured: dict[tuple[str, str], dict[_Form, dict[str, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    limits: dict[tuple[str, str], str] = {}
    loaded = [(path, *results.load(path)) for path in paths]
    for path, candidate, _ in loaded:
        if first is None:
            first = path, candidate
        _require_alike(path, candidate, *first)
        try:
            require_figures(candidate, path)
        except BaselineError as error:
            raise ResultsError(path, error.problem, error.cure) from error
    names = _name_hosts([candidate for _, candidate, _ in loaded])
    hosts: dict[str, None] = {}
    for _, candidate, form in loaded:
        limits.update(_read_limit_names(form.verdicts))
        for info in candidate.launches.values():
            hosts[names[info.host, info.gpus]] = None
        for test, entry in candidate.tests.items():
            for name, metric in entry.metrics.items():
                how = entry.body_hash, metric.unit, metric.better, metric.clock
                for host, values in _group_by_host(candidate, metric, names).items():
                    measured[test, name][how][host] += values
    figures, left_out = [], []
    for (test, name), forms in sorted(measured.items()):
        usual = max(forms, key=lambda how: len(forms[how]))
        others = sorted({host for how, values in forms.items() if how != usual for host in values})
        if others:
            left_out.append(f"{test} {name}: another test body, unit, direction or clock on {', '.join(others)}")
        _, unit, better, _ = usual
        medians = {host: statistics.median(many) for host, many in forms[usual].items()}
        component = find_component(name, unit, limits.get((test, name), ""))
        figures.append(Figure(test, name, unit, better, medians, component))
    key = "" if first is None else first[1].hardware_key
    return Fleet(key, tuple(hosts), tuple(figures), tuple(left_out))


def _require_alike(path: Path, candidate: Baselines, first_path: Path, first: Baselines) -> None:
    if candidate.hardware_key != first.hardware_key:
        problem = f"is of {candidate.hardware_key!r}, expected {first.hardware_key!r} as in {str(first_path)!r}"
        raise ResultsError(path, problem, "compare hosts of one hardware, each kind by itself")
    if why := describe_difference(first.match, candidate.match):
        raise ResultsError(path, f"{why} as in {str(first_path)!r}: their metrics cannot be compared", FOLDER)


def _name_hosts(candidates: Sequence[Baselines]) -> dict[tuple[str, str], str]:
    """A name for each host: its own, and its GPUs' digest if others have the same name, as virtual machines may."""
    found = dict.fromkeys((info.host, info.gpus) for one in candidates for info in one.launches.values())
    sharing = Counter(host for host, _ in found)
    return {
        (host, gpus): f"{host or 'unknown'}/{gpus or 'unknown'}" if sharing[host] > 1 or not host else host
        for host, gpus in found
    }


def _group_by_host(
    candidate: Baselines, metric: MetricBaseline, names: Mapping[tuple[str, str], str]
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for figure in metric.launches:
        info = candidate.launches[figure.launch]
        found[names[info.host, info.gpus]].append(figure.median)
    return found


def _read_limit_names(verdicts: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    """What sets each metric's limit; verdicts have other readers, so whatever else they say is passed over."""
    found = {}
    for verdict in verdicts:
        metric = verdict.get("metric")
        limit = metric.get("limit_name") if isinstance(metric, Mapping) else None
        test, name = verdict.get("test"), verdict.get("metric_name")
        if isinstance(limit, str) and isinstance(test, str) and isinstance(name, str):
            found[test, name] = limit
    return found
