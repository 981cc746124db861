"""Energy and bytes as a GPU counts them."""

import pynvml
import pytest

from pytest_gpuperf.hardware.counters import Counters, counters
from tests.hardware.fake_nvml import SWITCH, Device, FakeNvml

LINKS = {0: SWITCH, 1: SWITCH}


def test_the_numbers_are_those_of_nvml() -> None:
    for name in ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", "NVML_SUCCESS"):
        assert getattr(FakeNvml, name) == getattr(pynvml, name)


@pytest.mark.parametrize("totals", [True, False], ids=["all links at once", "link by link"])
def test_counters_are_in_si_units(totals: bool) -> None:
    device = Device("GPU-1", links=LINKS, millijoules=1500, nvlink_kib=(4, 6), nvlink_totals=totals)
    assert counters("GPU-1", FakeNvml([device])) == Counters(1.5, 4096, 6144)


def test_what_a_gpu_does_not_count_is_none() -> None:
    silent = Device("GPU-1", links=LINKS, millijoules=None, nvlink_kib=None)
    assert counters("GPU-1", FakeNvml([silent])) == Counters(None, None, None)


def test_a_gpu_without_links_counts_no_bytes_over_them() -> None:
    alone = Device("GPU-1", nvlink_totals=False)
    assert counters("GPU-1", FakeNvml([alone])) == Counters(0.0, None, None)
