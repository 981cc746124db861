"""Which metrics are the host's, and not the device's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from pytest_gpuperf.report.table import Line
from pytest_gpuperf.report.units import format_count
from pytest_gpuperf.verdicts.verdict import Verdict

_FEW = 10
"""Tests that are listed; of more the first ones, and a count."""
WAITS = (
    ": the step waits for the GPU, as .item() does and a copy from pageable memory; "
    'torch.cuda.set_sync_debug_mode("warn") says where'
)


def describe_host_bound(verdicts: Sequence[Verdict], *, fold: bool = False) -> list[Line]:
    """The tests with metrics that are bound by the host, and what makes them so.

    Args:
        verdicts: In any order.
        fold: Whether tests beyond the first few are only counted.
    """
    bound = sorted((one for one in verdicts if one.metric.host_bound), key=_place)
    if not bound:
        return []
    lines = [
        Line(
            f"{format_count(len(bound), 'metric')} bound by the host: the GPU waited for Python, whose time scatters "
            "more than a GPU's"
        )
    ]
    for (test, waits), group in groupby(bound, key=_place):
        names = ", ".join(one.metric_name for one in group)
        lines.append(Line(f"  {test} {names}{WAITS * waits}"))
    listed = lines[: 1 + _FEW] if fold else lines
    more = len(lines) - len(listed)
    return [*listed, Line(f"  and {format_count(more, 'test')} more (-v lists them)")] if more else listed


def _place(verdict: Verdict) -> tuple[str, bool]:
    return verdict.test, verdict.metric.waits
