"""How long the device is held while the host enqueues."""

from __future__ import annotations

import pytest

from pytest_gpuperf.timing.gate import (
    CYCLES_PER_SECOND,
    LOOK_EVERY,
    LOOK_MARGIN,
    MARGIN,
    MAX_SECONDS,
    MIN_SECONDS,
    REMEMBERED,
    TOLD,
    Gate,
)

HERTZ = 1.98e9


def sampled(gate: Gate, steps: int, seconds: float, *, before: float = 0.0) -> None:
    """A sample behind the gate, whose steps take the host so long."""
    held = gate.seconds(steps)
    gate.note_sample(steps, cycles=int(held * HERTZ), held=held, before=before, seconds=seconds)


def test_the_first_gate_is_short_and_errs_towards_a_longer_one() -> None:
    assert Gate().seconds(10) == MIN_SECONDS
    assert Gate().compute_cycles(10) == int(MIN_SECONDS * CYCLES_PER_SECOND)


def test_a_gate_is_as_long_as_the_host_took_at_most_but_once_and_a_margin() -> None:
    gate = Gate()
    sampled(gate, 4, 8e-3)
    assert gate.seconds(4) == pytest.approx(MARGIN * 8e-3)
    sampled(gate, 4, 8e-3)
    for _ in range(REMEMBERED - 2):
        sampled(gate, 4, 4e-3)
    assert gate.seconds(4) == pytest.approx(MARGIN * 8e-3)
    sampled(gate, 4, 4e-3)
    assert gate.seconds(4) == pytest.approx(MARGIN * 4e-3)


def test_a_host_that_was_held_up_once_makes_no_later_gate_longer() -> None:
    gate = Gate()
    for seconds in (1e-3, 1e-3, 15e-3):
        sampled(gate, 50, seconds)
    assert gate.seconds(50) == pytest.approx(MARGIN * 1e-3)


def test_what_is_enqueued_ahead_of_the_steps_is_enqueued_once() -> None:
    gate = Gate()
    sampled(gate, 1, 10e-6, before=150e-6)
    assert gate.seconds(100) == pytest.approx(MARGIN * (150e-6 + 100 * 10e-6))


def test_a_single_step_is_forgotten_once_there_are_several() -> None:
    gate = Gate()
    for _ in range(3):
        sampled(gate, 1, 300e-6)
    assert gate.seconds(100) == pytest.approx(MARGIN * 30e-3)
    sampled(gate, 100, 1e-3)
    assert gate.seconds(100) == pytest.approx(MARGIN * 1e-3)


def test_a_host_that_is_slow_every_other_time_is_held_for() -> None:
    gate, late = Gate(), 0
    for number in range(100):
        took = 2e-3 if number % 2 else 4e-3
        late += took > gate.seconds(1)
        sampled(gate, 1, took)
    assert late == 1  # the first, of which nothing was known


def test_a_gate_has_an_end() -> None:
    gate = Gate()
    sampled(gate, 1, 1.0)
    assert gate.seconds(1) == MAX_SECONDS


def test_a_step_that_waits_for_the_device_is_not_held_up() -> None:
    gate, on_device = Gate(), 10e-3
    for _ in range(TOLD):
        assert not gate.waits
        sampled(gate, 1, gate.seconds(1) + on_device)
    gates = []
    for _ in range(10 * LOOK_EVERY):
        assert gate.waits
        gates.append(gate.seconds(1))
        sampled(gate, 1, gates[-1] + on_device)
    assert sorted(gates)[:30] == [MIN_SECONDS] * 30, "one of four looks whether the step still waits"
    assert gates[-LOOK_EVERY:].count(MIN_SECONDS) == LOOK_EVERY - 1
    assert max(gates[REMEMBERED:]) == pytest.approx(LOOK_MARGIN * (on_device + MIN_SECONDS))
    assert max(gates) < 2 * LOOK_MARGIN * on_device, "the gates before are no part of the host's own time"


def test_a_step_that_waits_no_more_is_held_for_again() -> None:
    """DistributedDataParallel's first ten steps wait for the device, as it times them."""
    gate, on_host = Gate(), 13e-3
    waits = []
    for number in range(TOLD + REMEMBERED + LOOK_EVERY):
        sampled(gate, 3, gate.seconds(3) + 1e-3 if number < TOLD else on_host)
        waits.append(gate.waits)
    assert waits[TOLD - 1]
    assert not waits[-1]
    assert gate.seconds(3) == pytest.approx(MARGIN * on_host)


def test_a_host_that_gets_slower_is_held_for_at_the_first_look() -> None:
    """As it was with DistributedDataParallel on four GPUs: 2.8 to 5.9 ms a step once it waited no more."""
    gate = Gate()
    for _ in range(2 * REMEMBERED + 1):
        sampled(gate, 1, gate.seconds(1) + 0.5e-3)
    assert gate.waits
    ahead = []
    for seconds in (2.8e-3, 2.9e-3, 3.2e-3, 4.6e-3):  # the last one is behind the gate that looks
        ahead.append(seconds < gate.seconds(1))
        sampled(gate, 1, seconds)
    assert ahead == [False] * (LOOK_EVERY - 1) + [True]
    assert not gate.waits


def test_a_step_that_waits_is_known_although_its_own_time_varies() -> None:
    """As copies from pageable memory do, while other ranks copy too."""
    gate = Gate()
    for on_device in (5e-3, 8e-3, 4e-3, 7e-3):
        sampled(gate, 1, gate.seconds(1) + on_device)
    assert gate.waits


@pytest.mark.parametrize("on_host", [150e-6, 10e-3, 80e-3])
def test_a_step_that_only_takes_the_host_long_is_held_for(on_host: float) -> None:
    gate = Gate()
    for _ in range(REMEMBERED):
        sampled(gate, 1, on_host)
    assert not gate.waits
    assert gate.seconds(1) == min(MAX_SECONDS, max(MIN_SECONDS, MARGIN * on_host))


def test_a_host_that_gets_slower_and_slower_does_not_wait() -> None:
    gate = Gate()
    for seconds in (1e-3, 2e-3, 5e-3, 9e-3):
        sampled(gate, 1, seconds)
    assert gate.seconds(1) == pytest.approx(MARGIN * 5e-3)


def test_cycles_are_those_of_the_fastest_clock_seen() -> None:
    gate = Gate()
    for hertz in (0.345e9, HERTZ, 1.4e9):
        gate.note_sample(1, cycles=1_000_000, held=1_000_000 / hertz, before=0.0, seconds=0.0)
    assert gate.compute_cycles(1) == pytest.approx(MIN_SECONDS * HERTZ, abs=1)
