"""How long the device is held while the host enqueues."""

from __future__ import annotations

import pytest

from pytest_gpuperf.timing.gate import CYCLES_PER_SECOND, MARGIN, MAX_SECONDS, MIN_SECONDS, REMEMBERED, Gate


def test_the_first_gate_is_short_and_errs_towards_a_longer_one() -> None:
    assert Gate().seconds(10) == MIN_SECONDS
    assert Gate().cycles(10) == int(MIN_SECONDS * CYCLES_PER_SECOND)


def test_a_gate_is_as_long_as_the_host_took_at_most_but_once_and_a_margin() -> None:
    gate = Gate()
    gate.enqueued(4, before=0.0, seconds=8e-3)
    assert gate.seconds(4) == pytest.approx(MARGIN * 8e-3)
    gate.enqueued(4, before=0.0, seconds=8e-3)
    for _ in range(REMEMBERED - 2):
        gate.enqueued(4, before=0.0, seconds=4e-3)
    assert gate.seconds(4) == pytest.approx(MARGIN * 8e-3)
    gate.enqueued(4, before=0.0, seconds=4e-3)
    assert gate.seconds(4) == pytest.approx(MARGIN * 4e-3)


def test_a_host_that_was_held_up_once_makes_no_later_gate_longer() -> None:
    gate = Gate()
    for seconds in (1e-3, 1e-3, 15e-3):
        gate.enqueued(50, before=0.0, seconds=seconds)
    assert gate.seconds(50) == pytest.approx(MARGIN * 1e-3)


def test_what_is_enqueued_ahead_of_the_steps_is_enqueued_once() -> None:
    gate = Gate()
    gate.enqueued(1, before=150e-6, seconds=10e-6)
    assert gate.seconds(100) == pytest.approx(MARGIN * (150e-6 + 100 * 10e-6))


def test_a_single_step_is_forgotten_once_there_are_several() -> None:
    gate = Gate()
    for _ in range(3):
        gate.enqueued(1, before=0.0, seconds=300e-6)
    assert gate.seconds(100) == pytest.approx(MARGIN * 30e-3)
    gate.enqueued(100, before=0.0, seconds=1e-3)
    assert gate.seconds(100) == pytest.approx(MARGIN * 1e-3)


def test_a_host_that_is_slow_every_other_time_is_held_for() -> None:
    gate, late = Gate(), 0
    for number in range(100):
        took = 2e-3 if number % 2 else 4e-3
        late += took > gate.seconds(1)
        gate.enqueued(1, before=0.0, seconds=took)
    assert late == 1  # the first, of which nothing was known


def test_a_gate_has_an_end() -> None:
    gate = Gate()
    gate.enqueued(1, before=0.0, seconds=1.0)
    assert gate.seconds(1) == MAX_SECONDS


def test_cycles_are_those_of_the_fastest_clock_seen() -> None:
    gate = Gate()
    for hertz in (0.345e9, 1.98e9, 1.4e9):
        gate.lasted(1_000_000, 1_000_000 / hertz)
    assert gate.cycles(1) == pytest.approx(MIN_SECONDS * 1.98e9, abs=1)
