"""What the command ``fleet`` prints: the slow hosts with the part that is slow, and what could be seen."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

from pytest_gpuperf.baselines.plain import cut
from pytest_gpuperf.features.fleet.outliers import LEAST_HOSTS, Compared, Standing
from pytest_gpuperf.features.fleet.results_of_hosts import Fleet
from pytest_gpuperf.report.units import format_count, format_percent, format_value


def format_fleet(fleet: Fleet, compared: Sequence[Compared]) -> list[str]:
    """One block for each slow host, the slowest first; then what was compared, and what was not."""
    by_host: dict[str, list[tuple[Compared, Standing]]] = defaultdict(list)
    for one in compared:
        for standing in one.slow:
            by_host[standing.host].append((one, standing))
    lines = []
    for host, found in sorted(by_host.items(), key=lambda item: -max(standing.z for _, standing in item[1])):
        lines.append(f"slow: {cut(host)}: {_join_parts(found)}")
        lines += [
            f"  {_describe_figure(one, standing)}" for one, standing in sorted(found, key=lambda pair: -pair[1].z)
        ]
    few = len(fleet.figures) - len(compared)
    if few:
        lines.append(f"not compared: {format_count(few, 'metric')} of fewer than {LEAST_HOSTS} hosts")
    lines += [f"left out: {cut(line, 400)}" for line in fleet.left_out]
    lines.append(_summarize_fleet(fleet, compared, len(by_host)))
    return lines


def _join_parts(found: Sequence[tuple[Compared, Standing]]) -> str:
    return ", ".join(dict.fromkeys(str(one.figure.component) for one, _ in found))


def _describe_figure(one: Compared, standing: Standing) -> str:
    figure = one.figure
    value, median = (format_value(number, figure.unit) for number in (standing.value, one.median))
    worse = format_percent(_compute_fraction(one, standing))
    return (
        f"{cut(figure.test)} {cut(figure.name)}: {value} is {worse} worse than the median {median} of "
        f"{len(figure.values)} hosts (z {standing.z:.1f}, spread {format_percent(one.spread)})"
    )


def _compute_fraction(one: Compared, standing: Standing) -> float:
    return -math.expm1(-standing.loss) if one.figure.better == "higher" else math.expm1(standing.loss)


def _summarize_fleet(fleet: Fleet, compared: Sequence[Compared], slow: int) -> str:
    hosts, figures = format_count(len(fleet.hosts), "host"), format_count(len(compared), "metric")
    what = f"{hosts} of {fleet.hardware_key}, {figures} compared: {slow or 'none'} slow"
    seen = statistics.median(one.seen for one in compared)
    return f"{what}; a loss of {format_percent(seen)} is seen in half of the metrics"
