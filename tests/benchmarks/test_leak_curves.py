"""When a curve counts as flat."""

from __future__ import annotations

import argparse
import json

import pytest

from benchmarks.leak_curves import MIB, Curve, curves, number_of_tests, table


def curve(quantity: str, *values: int) -> Curve:
    return Curve("rank 0", quantity, tuple(50 * (index + 1) for index in range(len(values))), values)


@pytest.mark.parametrize("quantity", ["fds", "threads", "groups", "keys"])
@pytest.mark.parametrize("end", [6, 8])
def test_a_count_must_not_change(quantity: str, end: int) -> None:
    assert curve(quantity, 1, 7, 9, 7).flat
    assert not curve(quantity, 1, 7, 7, end).flat


@pytest.mark.parametrize("quantity", ["rss", "pss"])
def test_memory_may_shrink_and_grow_by_5_mib(quantity: str) -> None:
    assert curve(quantity, 0, 100 * MIB, 105 * MIB).flat
    assert curve(quantity, 0, 100 * MIB, 50 * MIB).flat
    assert not curve(quantity, 0, 100 * MIB, 105 * MIB + 1).flat


def test_a_gpus_memory_may_differ_by_2_mib() -> None:
    assert curve("gpu", 0, 100 * MIB, 102 * MIB).flat
    assert curve("gpu", 0, 100 * MIB, 98 * MIB).flat
    assert not curve("gpu", 0, 100 * MIB, 98 * MIB - 1).flat


def test_what_came_before_100_tests_is_no_growth() -> None:
    assert curve("fds", 3, 7, 7).change == 0


def test_samples_become_a_row_for_each_process_and_quantity() -> None:
    lines = [
        json.dumps({"tests": tests, "held": {"forkserver": {"fds": 7}, "rank 0": {"rss": rss * MIB}}})
        for tests, rss in ((50, 1), (100, 2), (150, 9))
    ]
    found = curves(lines)
    assert [(c.process, c.quantity, c.flat) for c in found] == [("forkserver", "fds", True), ("rank 0", "rss", False)]
    assert "rank 0 rss MiB" in table(found)
    assert "+7.0  NOT FLAT" in table(found)


@pytest.mark.parametrize("text", ["100", "175", "0"])
def test_a_run_must_end_with_a_sample_after_it_has_settled(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"a multiple of 50 above 100, got {text}"):
        number_of_tests(text)
