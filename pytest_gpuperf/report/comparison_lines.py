"""What the command ``compare`` says of two files: a table of their metrics, and with what else their launches ran."""

from __future__ import annotations

from pytest_gpuperf.baselines.compare import Compared, Pair
from pytest_gpuperf.baselines.plain import cut
from pytest_gpuperf.baselines.schema import MetricBaseline
from pytest_gpuperf.report.change import format_change
from pytest_gpuperf.report.units import format_count, format_percent, format_value

COLUMNS = ("change", "first", "second", "spread", "launches", "metric")


def format_comparison(compared: Compared, first: str, second: str) -> list[str]:
    """The lines of a comparison.

    Args:
        compared: Of two files.
        first: The name of the first file.
        second: The name of the second one.
    """
    return [
        f"first: {first}",
        f"second: {second}",
        "",
        *_format_table(compared.pairs),
        _say_count(compared),
        *[f"not alike: {cut(pair.test)}: {pair.unlike}" for pair in compared.pairs if pair.unlike],
        *[f"another body in the second: {cut(test)}" for test in compared.other_bodies],
        *_describe_launches(compared),
    ]


def _format_table(pairs: tuple[Pair, ...]) -> list[str]:
    if not pairs:
        return []
    rows = [COLUMNS, *map(_format_cells, pairs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    return ["  ".join([*map(str.ljust, row, widths), row[-1]]) for row in rows]


def _format_cells(pair: Pair) -> tuple[str, ...]:
    sides = (pair.first, pair.second)
    return (
        _format_change(pair),
        *("" if side is None else format_value(side.center, side.unit) for side in sides),
        _join_both(["" if side is None else _format_spread(side) for side in sides]),
        _join_both(["" if side is None else str(len(side.launches)) for side in sides]),
        f"{cut(pair.test)} {cut(pair.name)}",
    )


def _format_change(pair: Pair) -> str:
    if pair.change is not None and pair.second is not None:
        return format_change(pair.change, pair.second.better, pair.second.unit, pair.second.center)
    if pair.first is None or pair.second is None:
        return "only second" if pair.first is None else "only first"
    return "not alike"


def _format_spread(side: MetricBaseline) -> str:
    return format_percent(side.sigma_b) if len(side.launches) > 1 else "unknown"


def _join_both(told: list[str]) -> str:
    return ", ".join(one for one in told if one)


def _say_count(compared: Compared) -> str:
    alone = [
        sum(pair.second is None for pair in compared.pairs),
        sum(pair.first is None for pair in compared.pairs),
    ]
    both = len(compared.pairs) - sum(alone)
    return (
        f"{format_count(both, 'metric')} in both on {compared.hardware_key}, {alone[0]} only in the first, "
        f"{alone[1]} only in the second"
    )


def _describe_launches(compared: Compared) -> list[str]:
    if not compared.differing:
        return ["most launches of both ran with the same versions and variables"]
    return [
        f"launches differ in {cut(name)}: {_describe_value(then)} in most of the first, {_describe_value(now)} in most "
        "of the second"
        for name, (then, now) in compared.differing.items()
    ]


def _describe_value(value: str) -> str:
    return cut(value) if value else "not set"
