"""Which figures are the host's, and not the device's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from pytest_gpuperf.report.table import Line
from pytest_gpuperf.report.units import format_count
from pytest_gpuperf.verdicts.verdict import Verdict

_FEW = 10
"""Tests that are listed; of more the first ones, and a count."""


def host_lines(verdicts: Sequence[Verdict], *, fold: bool = False) -> list[Line]:
    """The tests with figures that are bound by the host, and what makes them so.

    Args:
        verdicts: In any order.
        fold: Whether tests beyond the first few are only counted.
    """
    bound = sorted((one for one in verdicts if one.metric.host_bound), key=lambda one: one.test)
    if not bound:
        return []
    lines = [
        Line(
            f"{format_count(len(bound), 'figure')} bound by the host: the GPU waited for Python, whose time scatters "
            "more than a GPU's"
        )
    ]
    for test, group in groupby(bound, key=lambda one: one.test):
        figures = list(group)
        names = ", ".join(one.metric_name for one in figures)
        why = ""
        if any(one.metric.waits for one in figures):
            why = (
                ": a step waits for the GPU, as .item() does and a copy from pageable memory; "
                'torch.cuda.set_sync_debug_mode("warn") says where'
            )
        lines.append(Line(f"  {test} {names}{why}"))
    listed = lines[: 1 + _FEW] if fold else lines
    more = len(lines) - len(listed)
    return [*listed, Line(f"  and {format_count(more, 'test')} more (-v lists them)")] if more else listed
