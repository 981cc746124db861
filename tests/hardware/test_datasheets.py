"""The peaks of the data sheets, by GPU and dtype."""

import pytest

from pytest_gpuperf.hardware.datasheets import find_peak


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("NVIDIA H200", "bfloat16", 989.4e12),
        ("NVIDIA H100 80GB HBM3", "float8_e4m3fn", 1978.9e12),
        ("NVIDIA H100 PCIe", "float16", 756e12),
        ("NVIDIA A100-SXM4-80GB", "float32", 156e12),
        ("NVIDIA A100-SXM4-80GB", "float8_e4m3fn", None),
        ("NVIDIA H200", "int8", None),
        ("NVIDIA H200 NVL", "bfloat16", None),
        ("NVIDIA GeForce RTX 4090", "bfloat16", None),
    ],
)
def test_a_peak_is_that_of_the_data_sheet(name: str, dtype: str, expected: float | None) -> None:
    assert find_peak(name, dtype) == expected
