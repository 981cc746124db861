"""The gates: what makes a measurement invalid, and what does not."""

from dataclasses import replace
from typing import Any

import pytest

from pytest_gpuperf.hardware.fitness import FIT, Conditions, Expected, conditions
from pytest_gpuperf.hardware.observation import IDLE, POWER_CAP, SLOWDOWNS, Observation
from pytest_gpuperf.hardware.xids import Xid

RANKS = (101, 102)
EXPECTED = Expected({"GPU-1": 18, "GPU-2": 18}, RANKS)
CALM = Observation("GPU-1", 0, 1.98e9, 18, 0, frozenset({101}), 10**11, 320.0, 400.0)
OTHER = replace(CALM, uuid="GPU-2", processes=frozenset({102}))


def found(*changes: dict[str, Any]) -> tuple[str, ...]:
    """What trips if the first GPU is looked at so many times, each look changed so."""
    seen: list[Observation] = []
    for change in changes:
        seen += [replace(CALM, **change), OTHER]
    return conditions(seen, EXPECTED).tripped


def test_a_calm_machine_is_fit() -> None:
    assert conditions([CALM, OTHER, CALM, OTHER], EXPECTED) == replace(FIT, sm_clock=1.98e9)


def test_a_machine_that_tells_nothing_trips_nothing() -> None:
    silent = Observation("GPU-1", None, None, None, None, None, 10**11, None, None)
    assert conditions([silent] * 5, EXPECTED) == FIT


def test_the_clock_is_that_of_busy_gpus_meanwhile() -> None:
    before, idle = replace(CALM, sm_hertz=345e6), replace(CALM, sm_hertz=345e6, reasons=IDLE)
    slower = replace(CALM, sm_hertz=1.755e9)
    assert conditions([before, idle, slower, slower, CALM, idle], EXPECTED).sm_clock == 1.755e9
    assert conditions([before, OTHER], EXPECTED).sm_clock is None


@pytest.mark.parametrize(("bit", "name"), SLOWDOWNS.items(), ids=SLOWDOWNS.values())
def test_a_slowdown_seen_once_trips(bit: int, name: str) -> None:
    assert found({}, {"reasons": bit | POWER_CAP}, {}) == (f"GPU GPU-1: {name}",)


def test_power_capping_is_noted_and_no_gate() -> None:
    seen = [CALM, replace(CALM, reasons=POWER_CAP, sm_hertz=1.2e9), CALM, CALM, CALM]
    assert conditions(seen, EXPECTED) == Conditions((), power_capped=True, sm_clock=1.98e9)


def test_what_a_gpu_did_before_is_not_what_it_did_meanwhile() -> None:
    hot, others_hot = (replace(look, reasons=POWER_CAP) for look in (CALM, OTHER))
    assert not conditions([hot, OTHER, CALM, OTHER], EXPECTED).power_capped
    assert not conditions([hot, others_hot, CALM, OTHER], EXPECTED).power_capped
    assert conditions([hot, others_hot, CALM, others_hot], EXPECTED).power_capped


@pytest.mark.parametrize(
    ("processes", "text"),
    [
        ({101}, None),
        (set(), None),
        ({101, 999}, "1 other process computed on it"),
        ({101, 998, 999}, "2 other processes computed on it"),
        ({55}, None),  # a rank's number on the driver's host, for all that a container knows
        ({55, 56}, "1 other process computed on it"),
    ],
)
def test_a_foreign_process_trips(processes: set[int], text: str | None) -> None:
    expected = () if text is None else (f"GPU GPU-1: {text}",)
    assert found({}, {"processes": frozenset(processes)}) == expected


def test_a_lost_nvlink_trips() -> None:
    assert found({}, {"nvlinks": 17}) == ("GPU GPU-1: 17 NVLinks were active, 18 when the run began",)


def test_new_memory_errors_trip_and_old_ones_do_not() -> None:
    assert found({"memory_errors": 3}, {"memory_errors": 3}) == ()
    assert found({"memory_errors": 3}, {"memory_errors": 5}) == ("GPU GPU-1: 2 uncorrected memory errors",)


def test_little_free_memory_trips() -> None:
    assert found({"free_bytes": 300 * 2**20}) == ()
    assert found({"free_bytes": 100 * 2**20}) == ("GPU GPU-1: 100 MiB of memory were free",)


@pytest.mark.parametrize(
    ("hertz", "text"),
    [
        ([1.98e9, 1.9e9, 1.5e9], None),
        ([1.98e9, 1.98e9, 1.4e9], "its SM clock fell from 1980 to 1400 MHz"),
        ([1.98e9, 0.3e9], None),  # too few looks
    ],
)
def test_a_clock_that_fell_trips(hertz: list[float], text: str | None) -> None:
    expected = () if text is None else (f"GPU GPU-1: {text}",)
    assert found(*({"sm_hertz": value} for value in hertz)) == expected


@pytest.mark.parametrize("reason", [IDLE, POWER_CAP])
def test_a_low_clock_that_is_as_it_should_be_does_not(reason: int) -> None:
    assert found({}, {}, {}, {"sm_hertz": 0.3e9, "reasons": reason}) == ()


def test_each_gpu_is_named() -> None:
    seen = [replace(CALM, nvlinks=0), replace(OTHER, reasons=0x40)]
    assert conditions(seen, EXPECTED).tripped == (
        "GPU GPU-1: 0 NVLinks were active, 18 when the run began",
        "GPU GPU-2: hardware thermal slowdown",
    )


def test_an_error_that_the_driver_reported_trips() -> None:
    found = conditions([CALM, OTHER], EXPECTED, [Xid("GPU-2", 94), Xid("GPU-2", 48)]).tripped
    assert found == ("GPU GPU-2: the driver reported Xid 94", "GPU GPU-2: the driver reported Xid 48")
