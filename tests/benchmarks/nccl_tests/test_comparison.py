"""The targets, and the table that says whether they are met."""

from __future__ import annotations

import pytest

from benchmarks.nccl_tests.comparison import Row, Verdict, rows, spread, summary, table
from benchmarks.nccl_tests.plan import SWEEPS, Figure, Plan, Point, Sweep, Turn
from pytest_gpuperf import GiB

LATENCY, BUSBW = SWEEPS


def row(theirs: tuple[float, ...], ours: tuple[float, ...], sweep: Sweep = BUSBW, unfit: str = "") -> Row:
    return Row(Point("all_reduce", 8, sweep.smallest), sweep, theirs, ours, unfit)


@pytest.mark.parametrize(
    ("theirs", "ours", "verdict"),
    [
        ((400e9,) * 3, (403.9e9,) * 3, Verdict.MET),
        ((400e9,) * 3, (396.1e9,) * 3, Verdict.MET),
        ((400e9,) * 3, (404.1e9,) * 3, Verdict.MISSED),
        ((400e9,) * 3, (395.9e9,) * 3, Verdict.MISSED),
        # One turn of each arm is within the target of the other.
        ((400e9, 400e9, 407e9), (410e9, 410e9, 410e9), Verdict.NOISE),
        ((400e9, 400e9, 405e9), (410e9, 410e9, 410e9), Verdict.MISSED),
        ((400e9, 400e9, 400e9), (390e9, 390e9, 397e9), Verdict.NOISE),
        ((400e9, 400e9, 400e9), (390e9, 390e9, 395e9), Verdict.MISSED),
        # The median, not the mean.
        ((400e9, 400e9, 900e9), (400e9, 401e9, 100e9), Verdict.MET),
    ],
)
def test_bus_bandwidth_is_to_differ_by_1_percent_at_most(
    theirs: tuple[float, ...], ours: tuple[float, ...], verdict: Verdict
) -> None:
    assert row(theirs, ours).verdict is verdict


@pytest.mark.parametrize(
    ("ours", "verdict"), [(10.49e-6, Verdict.MET), (10.51e-6, Verdict.MISSED), (9.4e-6, Verdict.MISSED)]
)
def test_latency_is_to_differ_by_5_percent_at_most(ours: float, verdict: Verdict) -> None:
    assert row((10e-6,) * 3, (ours,) * 3, LATENCY).verdict is verdict


def test_a_machine_that_was_not_fit_meets_no_target() -> None:
    assert row((1.0,), (1.0,), unfit="thermal slowdown").verdict is Verdict.UNFIT


def test_latency_compares_times_and_bandwidth_compares_busbw() -> None:
    asked = Plan(("all_reduce",), (2,), (LATENCY.ends, BUSBW.ends))
    theirs = Turn({point: Figure(1.0, 10.0) for _, point in asked.points}, "2.28.9", "x")
    ours = Turn({point: Figure(2.0, 30.0, "hot" * (point.nbytes == GiB)) for _, point in asked.points}, "2.28.9", "x")
    found = rows(asked, [theirs] * 2, [ours] * 2)
    assert [(row.theirs, row.ours) for row in found] == [((1.0, 1.0), (2.0, 2.0))] * 2 + [
        ((10.0, 10.0), (30.0, 30.0))
    ] * 2
    assert [row.unfit for row in found] == ["", "", "", "hot"]


def test_the_spread_is_the_turns_range() -> None:
    assert spread([99.0, 100.0, 103.0]) == pytest.approx(0.04)


def test_the_table_says_what_was_measured_and_whether_it_meets_the_target() -> None:
    found = [
        row((400e9, 404e9, 398e9), (404.1e9,) * 3),
        row((10e-6,) * 3, (10.1e-6,) * 3, LATENCY),
        row((400e9,), (500e9,)),
        row((400e9,), (500e9,), unfit="hot"),
    ]
    lines = [" ".join(line.split()) for line in table(found)]
    assert lines[1:] == [
        "all_reduce 8 64 MiB busbw 400.0 GB/s 1.50% 404.1 GB/s 0.00% +1.03% 1% missed, within the noise",
        "all_reduce 8 1 KiB latency 10.00 us 0.00% 10.10 us 0.00% +1.00% 5% met",
        "all_reduce 8 64 MiB busbw 400.0 GB/s 0.00% 500.0 GB/s 0.00% +25.00% 1% MISSED",
        "all_reduce 8 64 MiB busbw 400.0 GB/s 0.00% 500.0 GB/s 0.00% +25.00% 1% UNFIT: hot",
    ]
    assert summary(found) == (
        "1 of 4 rows meet their target; of the 3 others 1 are within the noise and 1 measured on a machine "
        "that was not fit"
    )
    assert summary(found[1:2]) == "1 of 1 rows meet their target"
