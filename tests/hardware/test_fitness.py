"""The gates: what makes a measurement invalid, and what does not."""

from dataclasses import replace
from typing import Any

import pytest

from pytest_gpuperf.figures.conditions import FIT, Conditions, Gate, Tripped
from pytest_gpuperf.hardware.device import ClockReason, Observation, Xid
from pytest_gpuperf.hardware.fitness import LEAST_FREE_BYTES, SLOWDOWNS, AtStart, make_conditions

RANKS = (101, 102)
AT_START = AtStart({"GPU-1": 18, "GPU-2": 18}, RANKS)
IDLE, POWER_CAP = frozenset({ClockReason.IDLE}), frozenset({ClockReason.POWER_CAP})
CALM = Observation("GPU-1", frozenset(), 1.98e9, 18, 0, frozenset({101}), 10**11, 320.0, 400.0)
OTHER = replace(CALM, uuid="GPU-2", processes=frozenset({102}))


def found(*changes: dict[str, Any]) -> tuple[Tripped, ...]:
    """What trips if the first GPU is looked at so many times, each look changed so."""
    seen: list[Observation] = []
    for change in changes:
        seen += [replace(CALM, **change), OTHER]
    return make_conditions(seen, AT_START).tripped


def test_a_calm_machine_is_fit() -> None:
    fit = replace(FIT, sm_clock=1.98e9, watts=400.0, kelvin=320.0)
    assert make_conditions([CALM, OTHER, CALM, OTHER], AT_START) == fit


def test_a_machine_that_tells_nothing_trips_nothing() -> None:
    silent = Observation("GPU-1", None, None, None, None, None, 10**11, None, None)
    assert make_conditions([silent] * 5, AT_START) == FIT


def test_the_clock_is_that_of_busy_gpus_meanwhile() -> None:
    before, idle = replace(CALM, sm_hertz=345e6), replace(CALM, sm_hertz=345e6, reasons=IDLE)
    slower = replace(CALM, sm_hertz=1.755e9)
    assert make_conditions([before, idle, slower, slower, CALM, idle], AT_START).sm_clock == 1.755e9
    assert make_conditions([before, OTHER], AT_START).sm_clock is None


def test_power_and_temperature_are_those_of_busy_gpus_meanwhile() -> None:
    idle, hot = replace(CALM, watts=70.0, kelvin=300.0, reasons=IDLE), replace(CALM, watts=690.0, kelvin=345.0)
    found = make_conditions([CALM, idle, hot, hot, CALM, replace(hot, watts=None, kelvin=None)], AT_START)
    assert (found.watts, found.kelvin) == (690.0, 345.0)


@pytest.mark.parametrize(("reason", "gate"), SLOWDOWNS.items(), ids=[gate.value for gate in SLOWDOWNS.values()])
def test_a_slowdown_seen_once_trips(reason: ClockReason, gate: Gate) -> None:
    assert gate.value == reason.value
    assert found({}, {"reasons": POWER_CAP | {reason}}, {}) == (Tripped("GPU-1", gate),)


def test_all_that_holds_the_clocks_back_for_long_is_a_gate() -> None:
    assert set(ClockReason) - set(SLOWDOWNS) == IDLE | POWER_CAP


def test_power_capping_is_noted_and_no_gate() -> None:
    seen = [CALM, replace(CALM, reasons=POWER_CAP, sm_hertz=1.2e9), CALM, CALM, CALM]
    assert make_conditions(seen, AT_START) == Conditions(
        (), power_capped=True, sm_clock=1.98e9, watts=400.0, kelvin=320.0
    )


def test_what_a_gpu_did_before_is_not_what_it_did_meanwhile() -> None:
    hot, others_hot = (replace(look, reasons=POWER_CAP) for look in (CALM, OTHER))
    assert not make_conditions([hot, OTHER, CALM, OTHER], AT_START).power_capped
    assert not make_conditions([hot, others_hot, CALM, OTHER], AT_START).power_capped
    assert make_conditions([hot, others_hot, CALM, others_hot], AT_START).power_capped


@pytest.mark.parametrize(
    ("processes", "others"),
    [
        ({101}, 0),
        (set(), 0),
        ({101, 999}, 1),
        ({101, 998, 999}, 2),
        ({55}, 0),  # a rank's number on the driver's host, for all that a container knows
        ({55, 56}, 1),
    ],
)
def test_a_foreign_process_trips(processes: set[int], others: int) -> None:
    expected = (Tripped("GPU-1", Gate.OTHER_PROCESSES, others, 0),) if others else ()
    assert found({}, {"processes": frozenset(processes)}) == expected


def test_a_lost_nvlink_trips() -> None:
    assert found({}, {"nvlinks": 17}) == (Tripped("GPU-1", Gate.LOST_NVLINKS, 17, 18),)


def test_new_memory_errors_trip_and_old_ones_do_not() -> None:
    assert found({"memory_errors": 3}, {"memory_errors": 3}) == ()
    assert found({"memory_errors": 3}, {"memory_errors": 5}) == (Tripped("GPU-1", Gate.MEMORY_ERRORS, 2, 0),)


def test_little_free_memory_trips() -> None:
    assert found({"free_bytes": 300 * 2**20}) == ()
    little = Tripped("GPU-1", Gate.LITTLE_MEMORY, 100 * 2**20, LEAST_FREE_BYTES, "B")
    assert found({"free_bytes": 100 * 2**20}) == (little,)


@pytest.mark.parametrize(
    ("hertz", "fell"),
    [
        ([1.98e9, 1.9e9, 1.5e9], False),
        ([1.98e9, 1.98e9, 1.4e9], True),
        ([1.98e9, 0.3e9], False),  # too few looks
    ],
)
def test_a_clock_that_fell_trips(hertz: list[float], fell: bool) -> None:
    expected = (Tripped("GPU-1", Gate.SLOW_CLOCK, 1.4e9, 1.98e9, "Hz"),) if fell else ()
    assert found(*({"sm_hertz": value} for value in hertz)) == expected


@pytest.mark.parametrize("reason", [ClockReason.IDLE, ClockReason.POWER_CAP])
def test_a_low_clock_that_is_as_it_should_be_does_not(reason: ClockReason) -> None:
    assert found({}, {}, {}, {"sm_hertz": 0.3e9, "reasons": frozenset({reason})}) == ()


def test_each_gpu_is_named() -> None:
    seen = [replace(CALM, nvlinks=0), replace(OTHER, reasons=frozenset({ClockReason.HARDWARE_THERMAL_SLOWDOWN}))]
    assert make_conditions(seen, AT_START).tripped == (
        Tripped("GPU-1", Gate.LOST_NVLINKS, 0, 18),
        Tripped("GPU-2", Gate.HARDWARE_THERMAL_SLOWDOWN),
    )


def test_an_error_that_the_driver_reported_trips() -> None:
    found = make_conditions([CALM, OTHER], AT_START, [Xid("GPU-2", 94), Xid("GPU-2", 48)]).tripped
    assert found == (Tripped("GPU-2", Gate.XID, 94), Tripped("GPU-2", Gate.XID, 48))
