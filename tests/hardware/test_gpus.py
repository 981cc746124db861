"""The GPUs that CUDA would show, as NVML and CUDA_VISIBLE_DEVICES say."""

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.hardware.errors import HardwareError
from pytest_gpuperf.hardware.gpus import Gpu, visible_gpus, visible_indices
from tests.hardware.fake_nvml import SWITCH, Device, FakeNvml

UUIDS = ["GPU-aa11", "GPU-aa22", "GPU-bb33"]


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        pytest.param(None, (0, 1, 2), id="unset"),
        pytest.param("", (), id="empty"),
        pytest.param("-1", (), id="minus-one"),
        pytest.param("NoDevFiles", (), id="word"),
        pytest.param("2,0", (2, 0), id="order"),
        pytest.param(" 1 , 2 ", (1, 2), id="spaces"),
        pytest.param("1gpu,2", (1, 2), id="strtoul"),
        pytest.param("0,-1,2", (0,), id="minus-one-ends"),
        pytest.param("0,3,1", (0,), id="beyond-the-last-ends"),
        pytest.param("0,,1", (0,), id="gap-ends"),
        pytest.param("0,GPU-bb33", (0,), id="uuid-among-indices-ends"),
        pytest.param("GPU-bb33,GPU-aa11", (2, 0), id="uuids"),
        pytest.param("GPU-b,GPU-aa2", (2, 1), id="prefixes"),
        pytest.param("GPU-bb33,GPU-aa", (2,), id="ambiguous-ends"),
        pytest.param("GPU-zz,GPU-bb33", (), id="unknown-ends"),
        pytest.param("GPU-bb33,0", (2,), id="index-among-uuids-ends"),
        pytest.param("0,-1,MIG-1", (0,), id="mig-after-the-end"),
    ],
)
def test_visible_indices_follow_cudas_rule(visible: str | None, indices: tuple[int, ...]) -> None:
    assert visible_indices(visible, UUIDS) == indices


@given(st.text(alphabet="0123-,GPUaMIb ", max_size=20))
def test_any_list_gives_distinct_gpus_or_a_named_error(visible: str) -> None:
    try:
        indices = visible_indices(visible, UUIDS)
    except HardwareError as error:
        assert repr(visible) in str(error)  # noqa: PT017
    else:
        assert len(set(indices)) == len(indices)
        assert set(indices) <= {0, 1, 2}


@pytest.mark.parametrize("visible", ["1,1", "GPU-bb33,GPU-b"])
def test_a_gpu_named_twice_is_refused(visible: str) -> None:
    with pytest.raises(HardwareError, match=rf"='{visible}' names GPU \d twice, expected each once .*: remove the"):
        visible_indices(visible, UUIDS)


@pytest.mark.parametrize("visible", ["MIG-1", "0,MIG-1"])
def test_a_mig_slice_is_refused(visible: str) -> None:
    with pytest.raises(HardwareError, match=r"names the MIG slice 'MIG-1', expected whole GPUs, .*nvidia-smi -mig 0"):
        visible_indices(visible, UUIDS)


def test_a_gpu_is_described() -> None:
    nvml = FakeNvml([Device("GPU-a", bus="00000000:0a:00.0", links=dict.fromkeys(range(18), SWITCH))])
    assert visible_gpus({}, nvml) == (
        Gpu(
            uuid="GPU-a",
            name="NVIDIA H200",
            memory_bytes=150_754_820_096,
            compute_capability=(9, 0),
            pci_bus_id="00000000:0A:00.0",
            nvlinks=18,
            nvlink_version=4,
            power_limit_watts=700.0,
        ),
    )
    assert (nvml.opened, nvml.closed) == (1, 1)


def test_what_a_gpu_does_not_support_is_left_out() -> None:
    nvml = FakeNvml([Device("GPU-a", power_limit_milliwatts=None, mig=None)])
    (gpu,) = visible_gpus({}, nvml)
    assert (gpu.nvlinks, gpu.nvlink_version, gpu.power_limit_watts) == (0, None, None)


def test_links_that_are_down_do_not_count() -> None:
    (gpu,) = visible_gpus({}, FakeNvml([Device("GPU-a", links={0: SWITCH, 17: SWITCH})]))
    assert gpu.nvlinks == 2


def test_the_environment_selects_and_orders() -> None:
    nvml = FakeNvml([Device(uuid) for uuid in UUIDS])
    assert [gpu.uuid for gpu in visible_gpus({"CUDA_VISIBLE_DEVICES": "2,0"}, nvml)] == [
        "GPU-bb33",
        "GPU-aa11",
    ]


@pytest.mark.parametrize("error", [FakeNvml.NVML_ERROR_LIBRARY_NOT_FOUND, FakeNvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_a_machine_without_nvml_has_no_gpus(error: int) -> None:
    nvml = FakeNvml([Device("GPU-a")], init_error=error)
    assert visible_gpus({}, nvml) == ()
    assert (nvml.opened, nvml.closed) == (0, 0)


def test_a_machine_with_a_driver_and_no_gpu_has_no_gpus() -> None:
    assert visible_gpus({}, FakeNvml()) == ()


def test_a_driver_of_another_version_is_said() -> None:
    nvml = FakeNvml(init_error=FakeNvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    with pytest.raises(
        HardwareError, match=r"NVML did not start: got 'NVML error 18', expected .*check that nvidia-smi"
    ):
        visible_gpus({}, nvml)


def test_a_lost_gpu_is_said_and_the_session_closed() -> None:
    nvml = FakeNvml([Device("GPU-a")], lost="GPU-a")
    with pytest.raises(HardwareError, match=r"could not describe a GPU: got 'NVML error 15': check .*nvidia-smi -q"):
        visible_gpus({}, nvml)
    assert (nvml.opened, nvml.closed) == (1, 1)


def test_a_gpu_in_mig_mode_is_refused_only_where_it_is_visible() -> None:
    nvml = FakeNvml([Device("GPU-a"), Device("GPU-b", mig=True)])
    with pytest.raises(HardwareError, match=r"GPU 'GPU-b' is split into MIG slices, expected whole GPUs, .*-mig 0"):
        visible_gpus({}, nvml)
    assert len(visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}, nvml)) == 1


def test_indices_into_unlike_gpus_need_one_order() -> None:
    nvml = FakeNvml([Device("GPU-a"), Device("GPU-b", name="NVIDIA T4")])
    with pytest.raises(HardwareError, match=r"counts unlike GPUs.*'FASTEST_FIRST', expected 'PCI_BUS_ID': set it"):
        visible_gpus({"CUDA_VISIBLE_DEVICES": "1"}, nvml)
    by_bus = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert [gpu.uuid for gpu in visible_gpus(by_bus, nvml)] == ["GPU-b"]
    assert [gpu.uuid for gpu in visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-b"}, nvml)] == ["GPU-b"]
    assert len(visible_gpus({}, nvml)) == 2


def test_pynvml_has_what_the_fake_has() -> None:
    names = {name for name in vars(FakeNvml) if name.startswith(("nvml", "NVML"))}
    assert {name for name in names if not hasattr(pynvml, name)} == set()
    constants = {name for name in names if name.startswith("NVML_")}
    assert {name: getattr(FakeNvml, name) for name in constants} == {name: getattr(pynvml, name) for name in constants}
