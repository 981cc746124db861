"""NVIDIA's GPUs as NVML describes them, on machines made up in memory."""

from types import SimpleNamespace

import pynvml
import pytest

from pytest_gpuperf.hardware.device import ClockReason, Counters, Gpu, HardwareError, Health, Observation, Xid
from pytest_gpuperf.hardware.nvml import Nvml
from tests.hardware.fake_nvml import SWITCH, Device, FakeError, FakeNvml

UUIDS = ["GPU-aa11", "GPU-aa22", "GPU-bb33"]
LINKS = {0: SWITCH, 1: SWITCH}
A, B = "GPU-a", "GPU-b"
IDLE = 600 * 1024**2


def test_pynvml_has_what_the_fake_has() -> None:
    names = {name for name in vars(FakeNvml) if name.startswith(("nvml", "NVML"))}
    assert {name for name in names if not hasattr(pynvml, name)} == set()
    constants = {name for name in names if name.startswith("NVML_")}
    assert {name: getattr(FakeNvml, name) for name in constants} == {name: getattr(pynvml, name) for name in constants}


def test_a_gpu_is_described() -> None:
    nvml = FakeNvml([Device("GPU-a", bus="00000000:0a:00.0", links=dict.fromkeys(range(18), SWITCH))])
    assert Nvml(nvml).visible({}) == (
        Gpu(
            uuid="GPU-a",
            name="NVIDIA H200",
            memory_bytes=150_754_820_096,
            compute_capability=(9, 0),
            pci_bus_id="00000000:0A:00.0",
            nvlinks=18,
            power_limit_watts=700.0,
        ),
    )
    assert (nvml.opened, nvml.closed) == (1, 1)


def test_what_a_gpu_does_not_support_is_left_out() -> None:
    nvml = FakeNvml([Device("GPU-a", power_limit_milliwatts=None, mig=None)])
    (gpu,) = Nvml(nvml).visible({})
    assert (gpu.nvlinks, gpu.power_limit_watts) == (0, None)


def test_links_that_are_down_do_not_count() -> None:
    (gpu,) = Nvml(FakeNvml([Device("GPU-a", links={0: SWITCH, 17: SWITCH})])).visible({})
    assert gpu.nvlinks == 2


def test_the_environment_selects_and_orders() -> None:
    nvml = FakeNvml([Device(uuid) for uuid in UUIDS])
    assert [gpu.uuid for gpu in Nvml(nvml).visible({"CUDA_VISIBLE_DEVICES": "2,0"})] == [
        "GPU-bb33",
        "GPU-aa11",
    ]


@pytest.mark.parametrize("error", [FakeNvml.NVML_ERROR_LIBRARY_NOT_FOUND, FakeNvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_a_machine_without_nvml_has_no_gpus(error: int) -> None:
    nvml = FakeNvml([Device("GPU-a")], init_error=error)
    assert Nvml(nvml).visible({}) == ()
    assert (nvml.opened, nvml.closed) == (0, 0)


def test_a_machine_with_a_driver_and_no_gpu_has_no_gpus() -> None:
    assert Nvml(FakeNvml()).visible({}) == ()


def test_a_driver_of_another_version_is_said() -> None:
    nvml = FakeNvml(init_error=FakeNvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    with pytest.raises(
        HardwareError, match=r"NVML did not start: got 'NVML error 18', expected .*check that nvidia-smi"
    ):
        Nvml(nvml).visible({})


def test_a_lost_gpu_is_said_and_the_session_closed() -> None:
    nvml = FakeNvml([Device("GPU-a")], lost="GPU-a")
    with pytest.raises(HardwareError, match=r"could not describe a GPU: got 'NVML error 15': check .*nvidia-smi -q"):
        Nvml(nvml).visible({})
    assert (nvml.opened, nvml.closed) == (1, 1)


def test_a_gpu_in_mig_mode_is_refused_only_where_it_is_visible() -> None:
    nvml = FakeNvml([Device("GPU-a"), Device("GPU-b", mig=True)])
    with pytest.raises(HardwareError, match=r"GPU 'GPU-b' is split into MIG slices, expected whole GPUs, .*-mig 0"):
        Nvml(nvml).visible({})
    assert len(Nvml(nvml).visible({"CUDA_VISIBLE_DEVICES": "0"})) == 1


def test_indices_into_unlike_gpus_need_one_order() -> None:
    nvml = FakeNvml([Device("GPU-a"), Device("GPU-b", name="NVIDIA T4")])
    with pytest.raises(HardwareError, match=r"counts unlike GPUs.*'FASTEST_FIRST', expected 'PCI_BUS_ID': set it"):
        Nvml(nvml).visible({"CUDA_VISIBLE_DEVICES": "1"})
    by_bus = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert [gpu.uuid for gpu in Nvml(nvml).visible(by_bus)] == ["GPU-b"]
    assert [gpu.uuid for gpu in Nvml(nvml).visible({"CUDA_VISIBLE_DEVICES": "GPU-b"})] == ["GPU-b"]
    assert len(Nvml(nvml).visible({})) == 2


def test_the_driver_has_a_version() -> None:
    assert Nvml(FakeNvml([Device("GPU-a")])).driver_version() == "570.86"
    assert Nvml(FakeNvml(init_error=FakeNvml.NVML_ERROR_LIBRARY_NOT_FOUND)).driver_version() is None


@pytest.mark.parametrize(
    ("bit", "reason"),
    [
        (pynvml.nvmlClocksEventReasonGpuIdle, ClockReason.IDLE),
        (pynvml.nvmlClocksEventReasonSwPowerCap, ClockReason.POWER_CAP),
        (pynvml.nvmlClocksEventReasonHwSlowdown, ClockReason.HARDWARE_SLOWDOWN),
        (pynvml.nvmlClocksEventReasonSwThermalSlowdown, ClockReason.SOFTWARE_THERMAL_SLOWDOWN),
        (pynvml.nvmlClocksEventReasonHwThermalSlowdown, ClockReason.HARDWARE_THERMAL_SLOWDOWN),
        (pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown, ClockReason.POWER_BRAKE),
    ],
)
def test_the_reasons_are_those_of_nvml(bit: int, reason: ClockReason) -> None:
    nvml = Nvml(FakeNvml([Device("GPU-1", reasons=bit | pynvml.nvmlClocksEventReasonUserDefinedClocks)]))
    assert nvml.observe("GPU-1").reasons == frozenset({reason})


def test_an_observation_is_in_si_units() -> None:
    device = Device("GPU-1", links={0: SWITCH, 1: SWITCH}, processes=(7, 8), reasons=4 | 2)
    seen = Nvml(FakeNvml([device])).observe("GPU-1")
    assert seen == Observation(
        uuid="GPU-1",
        reasons=frozenset({ClockReason.POWER_CAP}),
        sm_hertz=1.98e9,
        nvlinks=2,
        memory_errors=0,
        processes=frozenset({7, 8}),
        free_bytes=150_000_000_000,
        kelvin=40 + 273.15,
        watts=120.0,
    )


def test_what_a_gpu_does_not_tell_is_none() -> None:
    silent = Device(
        "GPU-1", reasons=None, sm_megahertz=None, celsius=None, milliwatts=None, memory_errors=None, processes=None
    )
    seen = Nvml(FakeNvml([silent])).observe("GPU-1")
    assert seen == Observation("GPU-1", None, None, None, None, None, 150_000_000_000, None, None)


def test_what_a_container_may_not_ask_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: FakeNvml, device: Device) -> int:
        raise FakeError(FakeNvml.NVML_ERROR_NO_PERMISSION)

    monkeypatch.setattr(FakeNvml, "nvmlDeviceGetComputeRunningProcesses", refuse)
    assert Nvml(FakeNvml([Device("GPU-1")])).observe("GPU-1").processes is None


@pytest.mark.parametrize("totals", [True, False], ids=["all links at once", "link by link"])
def test_counters_are_in_si_units(totals: bool) -> None:
    device = Device("GPU-1", links=LINKS, millijoules=1500, nvlink_kib=(4, 6), nvlink_totals=totals)
    assert Nvml(FakeNvml([device])).counters("GPU-1") == Counters(1.5, 4096, 6144)


def test_cores_are_those_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 96)
    devices = [Device("GPU-1", cores=[0, 5, 63, 64, 95]), Device("GPU-2"), Device("GPU-3", cores=None)]
    nvml = Nvml(FakeNvml(devices))
    assert nvml.cores("GPU-1") == {0, 5, 63, 64, 95}
    assert nvml.cores("GPU-2") == nvml.cores("GPU-3") == frozenset()


def test_health_is_errors_by_name_and_how_hard_a_gpu_works() -> None:
    device = Device("GPU-1", errors={38: 1, 45: 2, 52: 3, 59: 4, 94: 5}, corrected=6, memory_errors=7)
    assert Nvml(FakeNvml([device])).health("GPU-1") == Health(
        "GPU-1",
        {
            "NVLink CRC of flits": 1,
            "NVLink CRC of data": 2,
            "NVLink replays": 3,
            "NVLink recoveries": 4,
            "PCIe replays": 5,
            "ECC corrected": 6,
            "ECC uncorrected": 7,
        },
        kelvin=40 + 273.15,
        watts=120.0,
        sm_hertz=1.98e9,
    )


def test_errors_that_a_gpu_does_not_count_are_none() -> None:
    silent = Device("GPU-1", corrected=None, memory_errors=None, celsius=None, milliwatts=None, sm_megahertz=None)
    health = Nvml(FakeNvml([silent])).health("GPU-1")
    assert set(health.errors.values()) == {None}
    assert (health.kelvin, health.watts, health.sm_hertz) == (None, None, None)


@pytest.mark.parametrize(
    ("then", "now", "risen"),
    [(0, 3, {"ECC corrected": 3}), (3, 3, {}), (3, 0, {}), (None, 3, {}), (3, None, {}), (None, None, {})],
)
def test_errors_rise_if_both_counts_are_told(then: int | None, now: int | None, risen: dict[str, int]) -> None:
    before, after = (Health("GPU-1", {"ECC corrected": count}, None, None, None) for count in (then, now))
    assert after.risen(before) == risen


def test_what_a_gpu_does_not_count_is_none() -> None:
    silent = Device("GPU-1", links=LINKS, millijoules=None, nvlink_kib=None)
    assert Nvml(FakeNvml([silent])).counters("GPU-1") == Counters(None, None, None)


def test_a_gpu_without_links_counts_no_bytes_over_them() -> None:
    alone = Device("GPU-1", nvlink_totals=False)
    assert Nvml(FakeNvml([alone])).counters("GPU-1") == Counters(0.0, None, None)


def test_reports_are_kept_with_the_gpu_that_they_are_of() -> None:
    first, second = Device("GPU-1", xids=[13]), Device("GPU-2")
    nvml = FakeNvml([first, second])
    listener = Nvml(nvml).listen(["GPU-1", "GPU-2"])  # the 13 was before
    second.xids += [94, 48]
    first.xids += [31]
    assert listener.close() == (Xid("GPU-1", 31), Xid("GPU-2", 94), Xid("GPU-2", 48))
    assert listener.close() == ()
    assert nvml.sets == 0


def test_a_machine_that_lets_nobody_listen_reports_nothing() -> None:
    device = Device("GPU-1", listening=False)
    listener = Nvml(FakeNvml([device])).listen(["GPU-1"])
    device.xids += [31]
    assert listener.close() == ()


class NvmlWithMemory(FakeNvml):
    """A machine whose GPUs use memory."""

    def nvmlDeviceGetMemoryInfo(self, device: Device) -> SimpleNamespace:  # noqa: N802 (the name is NVML's)
        return SimpleNamespace(total=super().nvmlDeviceGetMemoryInfo(device).total, used=IDLE)


def test_used_memory_is_nvmls() -> None:
    nvml = NvmlWithMemory([Device(A), Device(B)])
    assert Nvml(nvml).used_memory(B) == IDLE
    assert nvml.opened == nvml.closed == 1


def test_used_memory_without_a_driver() -> None:
    nvml = NvmlWithMemory(init_error=FakeNvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with pytest.raises(HardwareError, match=r"memory of GPU 'GPU-a': got no driver.*check that nvidia-smi runs"):
        Nvml(nvml).used_memory(A)


def test_used_memory_of_a_lost_gpu() -> None:
    with pytest.raises(HardwareError, match="check the GPU's health"):
        Nvml(NvmlWithMemory([Device(A)], lost=A)).used_memory(A)


def test_the_memory_moves_its_bus_twice_a_cycle() -> None:
    """Data sheets: H200 4.8 TB/s, H100 SXM 3.35 TB/s."""
    h100 = Device("GPU-b", name="NVIDIA H100 80GB HBM3", memory_bus=5120, memory_megahertz=2619)
    nvml = Nvml(
        FakeNvml([Device("GPU-a"), h100, Device("GPU-c", memory_bus=None), Device("GPU-d", memory_megahertz=0)])
    )
    assert nvml.memory_rate("GPU-a") == pytest.approx(4.917e12, rel=1e-3)
    assert nvml.memory_rate("GPU-b") == pytest.approx(3.352e12, rel=1e-3)
    assert nvml.memory_rate("GPU-c") is nvml.memory_rate("GPU-d") is None


def test_a_gpu_that_is_joined_to_the_host_by_another_link_has_no_slot_to_tell_of() -> None:
    nvml = Nvml(FakeNvml([Device("GPU-a"), Device("GPU-b", c2c=False), Device("GPU-c", c2c=True)]))
    assert [nvml.pcie(uuid) for uuid in ("GPU-a", "GPU-b", "GPU-c")] == [(5, 16), (5, 16), None]


def test_a_driver_that_is_older_than_a_question_leaves_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: FakeNvml, device: Device) -> None:
        raise FakeError(self.NVML_ERROR_FUNCTION_NOT_FOUND)

    monkeypatch.setattr(FakeNvml, "nvmlDeviceGetC2cModeInfoV", missing)
    assert Nvml(FakeNvml([Device("GPU-a")])).pcie("GPU-a") == (5, 16)
