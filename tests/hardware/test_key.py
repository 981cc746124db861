"""The name of a machine."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.hardware.device import Gpu, HardwareError
from pytest_gpuperf.hardware.key import make_hardware_key, match_fields
from pytest_gpuperf.hardware.linkage import Linkage
from tests.hardware.fake_nvml import Device, gpu_of

NONE = Linkage("none", "", None)
NV18 = Linkage("nvlink", "nv18", 450e9)
SYS = Linkage("pcie", "sys", None)


def gpus(*names: str) -> list[Gpu]:
    return [gpu_of(Device(f"GPU-{index}", name)) for index, name in enumerate(names)]


@pytest.mark.parametrize(
    ("names", "linkage", "key"),
    [
        (["NVIDIA H200"] * 8, NV18, "8x-nvidia-h200-nv18"),
        (["NVIDIA H200"], NONE, "1x-nvidia-h200"),
        (["NVIDIA A100-SXM4-80GB"] * 2, SYS, "2x-nvidia-a100-sxm4-80gb-sys"),
        (["NVIDIA T4", "NVIDIA H200", "NVIDIA T4"], SYS, "1x-nvidia-h200+2x-nvidia-t4-sys"),
    ],
)
def test_the_key_says_model_count_and_links(names: list[str], linkage: Linkage, key: str) -> None:
    assert make_hardware_key(gpus(*names), linkage) == key


@given(st.lists(st.text(min_size=1), min_size=1, max_size=3))
def test_every_key_is_a_plain_file_name(names: list[str]) -> None:
    assert re.fullmatch(r"[a-z0-9+-]+", make_hardware_key(gpus(*names), SYS))


def test_the_order_of_gpus_does_not_matter() -> None:
    assert make_hardware_key(gpus("A", "B"), SYS) == make_hardware_key(gpus("B", "A"), SYS)


def test_match_fields_of_one_model() -> None:
    assert match_fields(gpus("NVIDIA H200", "NVIDIA H200"), NV18) == {
        "gpu_name": "NVIDIA H200",
        "gpu_count": 2,
        "topology": "nv18",
        "cc": "9.0",
        "mem_gib": 140,
        "power_limit_w": 700.0,
    }


def test_match_fields_of_unlike_gpus_give_the_smallest() -> None:
    small = Device("GPU-b", "NVIDIA T4", (7, 5), memory_bytes=16 * 2**30, power_limit_milliwatts=70_000)
    fields = match_fields([*gpus("NVIDIA H200"), gpu_of(small)], SYS)
    assert fields["gpu_name"] == "NVIDIA H200+NVIDIA T4"
    assert fields["cc"] == "7.5+9.0"
    assert fields["mem_gib"] == 16
    assert fields["power_limit_w"] == 70.0


def test_an_unknown_power_limit_stays_unknown() -> None:
    unknown = gpu_of(Device("GPU-b", power_limit_milliwatts=None))
    assert match_fields([*gpus("NVIDIA H200"), unknown], SYS)["power_limit_w"] is None


@pytest.mark.parametrize("name", [make_hardware_key, match_fields])
def test_no_gpus_have_no_name(name: type[object]) -> None:
    with pytest.raises(HardwareError, match="got 0 GPUs to name, expected at least 1: run on a machine with GPUs"):
        name([], NONE)  # type: ignore[call-arg]
