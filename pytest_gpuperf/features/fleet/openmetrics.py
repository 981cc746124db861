"""Metrics of a fleet as OpenMetrics text, which Prometheus and others read.

Source of the format: OpenMetrics 1.0, section "Text Format".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pytest_gpuperf.features.fleet.outliers import Compared, Standing
from pytest_gpuperf.features.fleet.results_of_hosts import Fleet

_FAMILIES: tuple[tuple[str, str, Callable[[Standing], float]], ...] = (
    ("gpuperf_figure", "A metric of one host, in the SI unit that its label names.", lambda standing: standing.value),
    ("gpuperf_fleet_loss", "Difference of logarithms to the median of all hosts, worse above 0.", lambda s: s.loss),
    ("gpuperf_fleet_z", "That loss over the robust spread between hosts.", lambda standing: standing.z),
    ("gpuperf_fleet_slow", "1 if chance does not explain the loss, else 0.", lambda standing: float(standing.slow)),
)


def format_openmetrics(fleet: Fleet, compared: Sequence[Compared]) -> str:
    """The text, which ends with the line that the format asks for.

    Args:
        fleet: Names the hardware.
        compared: Its metrics.
    """
    return "\n".join([*_iterate_lines(fleet, compared), "# EOF", ""])


def _iterate_lines(fleet: Fleet, compared: Sequence[Compared]) -> Iterator[str]:
    yield "# TYPE gpuperf_fleet_hosts gauge"
    yield "# HELP gpuperf_fleet_hosts Hosts whose results were compared."
    yield f"gpuperf_fleet_hosts{_format_labels(hardware=fleet.hardware_key)} {len(fleet.hosts)}"
    for family, text, number in _FAMILIES:
        yield f"# TYPE {family} gauge"
        yield f"# HELP {family} {text}"
        for one in compared:
            figure = one.figure
            for standing in one.standings:
                labels = _format_labels(
                    hardware=fleet.hardware_key,
                    host=standing.host,
                    test=figure.test,
                    figure=figure.name,
                    unit=figure.unit,
                    component=str(figure.component),
                )
                yield f"{family}{labels} {number(standing)!r}"


def _format_labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
