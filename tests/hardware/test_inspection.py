"""What NVML reports of a whole machine, GPUs included that no run would take; and an NVML that lacks most calls."""

import ctypes
from types import SimpleNamespace

import pytest

from pytest_gpuperf.hardware.device import SWITCH
from pytest_gpuperf.hardware.inspection import Inspection, LinkFacts, PcieFacts, RowsFacts
from pytest_gpuperf.hardware.nvml import Nvml
from tests.hardware.fake_nvml import Device, FakeError, FakeNvml

LEVELS = {frozenset({"a", "b"}): 50}


class Talkative(FakeNvml):
    """Answers the questions that only a diagnosis asks."""

    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return 13010

    def nvmlDeviceGetTotalEccErrors(self, device: Device, kind: int, counter: int) -> int:  # noqa: N802
        return 5 if counter else super().nvmlDeviceGetTotalEccErrors(device, kind, counter)

    def nvmlDeviceGetVbiosVersion(self, device: Device) -> bytes:  # noqa: N802
        return b"96.00.A5"

    def nvmlDeviceGetCurrPcieLinkGeneration(self, device: Device) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetCurrPcieLinkWidth(self, device: Device) -> int:  # noqa: N802
        return 8

    def nvmlDeviceGetGpuMaxPcieLinkGeneration(self, device: Device) -> int:  # noqa: N802
        return 5

    def nvmlDeviceGetEccMode(self, device: Device) -> list[int]:  # noqa: N802
        return [1, 0]

    def nvmlDeviceGetPersistenceMode(self, device: Device) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetRemappedRows(self, device: Device) -> tuple[int, int, int, int]:  # noqa: N802
        return 3, 1, 1, 0

    def nvmlDeviceGetComputeMode(self, device: Device) -> int:  # noqa: N802
        return 3

    def nvmlDeviceGetTemperatureThreshold(self, device: Device, kind: int) -> int:  # noqa: N802
        assert kind == 1
        return 87

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Device) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Device, index: int) -> int:  # noqa: N802
        if index > 1:
            raise FakeError(self.NVML_ERROR_NOT_SUPPORTED)
        return index

    def nvmlDeviceGetP2PStatus(self, a: Device, b: Device, kind: int) -> int:  # noqa: N802
        return {0: 0, 1: 4, 3: 99}[kind]

    def c_nvmlGpuFabricInfo_t(self) -> object:  # noqa: N802
        class Info(ctypes.Structure):
            _fields_ = (("status", ctypes.c_uint), ("state", ctypes.c_uint))

        self.info = Info()
        return self.info

    def nvmlDeviceGetGpuFabricInfo(self, device: Device, pointer: object) -> int:  # noqa: N802
        self.info.state, self.info.status = 3, 0 if device.uuid == "a" else 6
        return 0

    def _field(self, device: Device, number: int, scope: int) -> SimpleNamespace:
        if number == self.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION:
            return SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=4))
        return super()._field(device, number, scope)

    def nvmlDeviceGetClockInfo(self, device: Device, clock: int) -> int:  # noqa: N802
        return 1980 if clock == 1 else 3201

    def nvmlDeviceGetMaxClockInfo(self, device: Device, clock: int) -> int:  # noqa: N802
        return 1980 if clock == 1 else 3201


def test_all_that_nvml_answers() -> None:
    device = Device(
        "a", links={0: SWITCH, 1: "00000000:02:00.0"}, mig=True, reasons=0x24, processes=[7, 3], errors={94: 2}
    )
    seen = Nvml(Talkative([device, Device("b", bus="00000000:02:00.0")], LEVELS)).inspect()
    assert (seen.driver, seen.cuda, seen.problem, seen.present) == ("570.86", "13.1", "", True)
    gpu, other = seen.gpus
    assert (gpu.uuid, gpu.name, gpu.vbios, gpu.compute_capability) == ("a", "NVIDIA H200", "96.00.A5", (9, 0))
    assert gpu.links == (LinkFacts(0, True, SWITCH), LinkFacts(1, True, "00000000:02:00.0"))
    assert gpu.pcie == PcieFacts(1, 8, 5, 5, 16)
    assert (gpu.ecc, gpu.ecc_pending, gpu.persistence, gpu.compute_mode) == (True, False, True, "exclusive process")
    assert gpu.rows == RowsFacts(3, 1, pending=True, failed=False)
    assert (gpu.mig, gpu.mig_slices, other.mig_slices) == (True, 2, None)
    assert gpu.slowdowns == ("power cap", "software thermal slowdown")
    assert (gpu.processes, gpu.recovery, gpu.fabric, other.fabric) == ((3, 7), "drain and reset", "completed", "failed")
    assert (gpu.power_limit_watts, gpu.watts, gpu.sm_most_hertz) == (700.0, 120.0, 1980e6)
    assert gpu.slowdown_kelvin == pytest.approx(360.15)
    assert gpu.lifetime_uncorrected == 5
    assert gpu.errors["PCIe replays"] == 2
    (pair,) = seen.pairs
    assert (pair.first, pair.second, pair.distance) == (0, 1, "SYS")
    assert pair.p2p == {"read": "ok", "write": "a registry key disables it", "atomics": "unknown"}


def test_what_crosses_pcie_is_counted_in_both_directions() -> None:
    devices = [Device("a", pcie_kilobytes=(50_000_000, 4_000_000)), Device("b", pcie_kilobytes=None), Device("c")]
    assert Nvml(FakeNvml(devices)).pcie_traffic() == {"a": 54e9, "c": 4e3}
    assert Nvml(FakeNvml(init_error=9)).pcie_traffic() == {}


def test_how_busy_a_gpu_is_is_a_share() -> None:
    one, other = Nvml(Talkative([Device("a", busy=97), Device("b", busy=None)], LEVELS)).inspect().gpus
    assert (one.busy, other.busy) == (0.97, None)


class Silent(FakeNvml):
    """Lists its GPUs and refuses whatever else is asked, as a locked-down container does."""

    def __getattribute__(self, name: str) -> object:
        listing = ("Init", "Shutdown", "Count", "HandleBy", "GetUUID", "MemoryInfo", "Version")
        if name.startswith("nvml") and not any(part in name for part in listing):
            return refuse
        return super().__getattribute__(name)


def refuse(*args: object) -> object:
    raise FakeError(FakeNvml.NVML_ERROR_NO_PERMISSION)


def test_an_nvml_that_answers_nearly_nothing() -> None:
    (gpu,) = Nvml(Silent([Device("a")])).inspect().gpus
    assert (gpu.uuid, gpu.name, gpu.links, gpu.problem) == ("a", "", (), "")
    assert (gpu.errors, gpu.slowdowns, gpu.processes, gpu.power_limit_watts) == ({}, None, None, None)


def test_a_lost_gpu_is_named_and_the_others_are_described() -> None:
    one, other = Nvml(Talkative([Device("a"), Device("b")], LEVELS, lost="a")).inspect().gpus
    assert (one.uuid, one.problem) == ("a", "NVML error 15")
    assert (other.uuid, other.problem) == ("b", "")


@pytest.mark.parametrize("error", [9, 12, 28])
def test_a_machine_without_driver(error: int) -> None:
    assert Nvml(FakeNvml(init_error=error)).inspect() == Inspection(present=False)


def test_a_driver_that_was_updated_meanwhile() -> None:
    seen = Nvml(FakeNvml(init_error=18)).inspect()
    assert "NVML did not start" in seen.problem
    assert seen.gpus == ()
