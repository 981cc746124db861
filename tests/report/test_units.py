"""Figures as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.report.units import format_bytes, format_percent, format_value


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (356.2e9, "B/s", "356.2 GB/s"),
        (298e9, "B/s", "298.0 GB/s"),
        (4.8e12, "B/s", "4.800 TB/s"),
        (999.96e9, "B/s", "1.000 TB/s"),
        (12.0, "B/s", "12.00 B/s"),
        (0.5, "B/s", "0.5000 B/s"),
        (789.4e12, "FLOP/s", "789.4 TFLOP/s"),
        (1.98e9, "Hz", "1.980 GHz"),
        (700.0, "W", "700.0 W"),
        (27.03e-6, "s", "27.03 us"),
        (1.402e-3, "s", "1.402 ms"),
        (999.96e-6, "s", "1.000 ms"),
        (12.5, "s", "12.50 s"),
        (1234.0, "s", "1234 s"),
        (3.2e-9, "s", "3.200 ns"),
        (1e-10, "s", "0.1000 ns"),
        (0.0, "s", "0.000 ns"),
        (1.4, "x", "1.40x"),
        (0.9123, "x", "0.912x"),
        (12.0, "x", "12.0x"),
        (123.4, "x", "123x"),
        (0.12, "fraction", "12 %"),
        (0.12345, "fraction", "12.35 %"),
        (64 * 2**20, "B", "64 MiB"),
        (1234.0, "tokens/s", "1234 tokens/s"),
    ],
)
def test_values(value: float, unit: str, text: str) -> None:
    assert format_value(value, unit) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (12, "12 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1.5 * 2**30, "1.5 GiB"),
        (2**30, "1 GiB"),
        (2**40, "1 TiB"),
        (2**30 - 1, "1 GiB"),
        (2**75, "3.277e+04 EiB"),
    ],
)
def test_bytes(count: float, text: str) -> None:
    assert format_bytes(count) == text


@given(st.floats(1e-9, 999e18), st.sampled_from(["B/s", "s", "FLOP/s"]))
def test_a_formatted_value_is_the_value_to_four_digits(value: float, unit: str) -> None:
    number, symbol = format_value(value, unit).split()
    prefix = symbol.removesuffix(unit)
    scale = {
        "E": 1e18,
        "P": 1e15,
        "T": 1e12,
        "G": 1e9,
        "M": 1e6,
        "k": 1e3,
        "": 1,
        "m": 1e-3,
        "u": 1e-6,
        "n": 1e-9,
    }
    assert float(number) * scale[prefix] == pytest.approx(value, rel=5.1e-4)


@pytest.mark.parametrize(
    ("fraction", "signed", "text"),
    [
        (0.163, False, "16.3 %"),
        (0.163, True, "+16.3 %"),
        (-0.163, True, "-16.3 %"),
        (-0.0001, True, "+0.0 %"),
        (0.05, False, "5.0 %"),
    ],
)
def test_percent(fraction: float, signed: bool, text: str) -> None:
    assert format_percent(fraction, signed=signed) == text
