"""GPUs observed while something runs."""

import threading

import pynvml
import pytest

from pytest_gpuperf.hardware.errors import HardwareError
from pytest_gpuperf.hardware.observation import SLOWDOWNS, Observation, observe
from pytest_gpuperf.hardware.watch import Watch
from tests.hardware.fake_nvml import SWITCH, Device, FakeError, FakeNvml


def test_the_numbers_are_those_of_nvml() -> None:
    assert FakeNvml.NVML_ERROR_NO_PERMISSION == pynvml.NVML_ERROR_NO_PERMISSION
    assert FakeNvml.NVML_CLOCK_SM == pynvml.NVML_CLOCK_SM
    assert FakeNvml.NVML_TEMPERATURE_GPU == pynvml.NVML_TEMPERATURE_GPU
    assert FakeNvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED == pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    assert FakeNvml.NVML_VOLATILE_ECC == pynvml.NVML_VOLATILE_ECC
    assert set(SLOWDOWNS) == {
        pynvml.nvmlClocksEventReasonHwSlowdown,
        pynvml.nvmlClocksEventReasonSwThermalSlowdown,
        pynvml.nvmlClocksEventReasonHwThermalSlowdown,
        pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
    }


def test_an_observation_is_in_si_units() -> None:
    device = Device("GPU-1", links={0: SWITCH, 1: SWITCH}, processes=(7, 8), reasons=4)
    seen = observe("GPU-1", FakeNvml([device]))
    assert seen == Observation(
        uuid="GPU-1",
        reasons=4,
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
    seen = observe("GPU-1", FakeNvml([silent]))
    assert seen == Observation("GPU-1", None, None, None, None, None, 150_000_000_000, None, None)


def test_what_a_container_may_not_ask_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: FakeNvml, device: Device) -> int:
        raise FakeError(FakeNvml.NVML_ERROR_NO_PERMISSION)

    monkeypatch.setattr(FakeNvml, "nvmlDeviceGetComputeRunningProcesses", refuse)
    assert observe("GPU-1", FakeNvml([Device("GPU-1")])).processes is None


def test_each_gpu_is_looked_at_before_during_and_after() -> None:
    device = Device("GPU-1", reasons=1, links={0: SWITCH})
    nvml = FakeNvml([device, Device("GPU-2")])
    with Watch(["GPU-1", "GPU-2"], interval=0.005, nvml=nvml) as watch:
        assert [seen.reasons for seen in watch.seen][:2] == [1, 0]
        device.reasons = 8
        started = nvml.looks
        while nvml.looks < started + 4:
            threading.Event().wait(0.001)
        device.reasons = 64
    of_first = [seen.reasons for seen in watch.seen if seen.uuid == "GPU-1"]
    assert (of_first[0], of_first[-1]) == (1, 64)
    assert 8 in of_first
    links = [seen.nvlinks for seen in watch.seen if seen.uuid == "GPU-1"]
    assert (links[0], links[-1], set(links[1:-1])) == (1, 1, {None})
    assert (nvml.opened, nvml.closed) == (1, 1)


def test_a_short_run_is_looked_at_twice() -> None:
    with Watch(["GPU-1"], interval=60.0, nvml=FakeNvml([Device("GPU-1")])) as watch:
        pass
    assert len(watch.seen) == 2


def test_a_gpu_that_is_lost_meanwhile_is_an_error() -> None:
    nvml = FakeNvml([Device("GPU-1")])
    message = r"NVML could not describe a GPU: got 'NVML error 15'"
    with pytest.raises(HardwareError, match=message), Watch(["GPU-1"], interval=60.0, nvml=nvml):
        nvml.lost = "GPU-1"


def test_an_error_of_what_is_watched_goes_before_the_watchs_own() -> None:
    nvml = FakeNvml([Device("GPU-1")], lost="GPU-1")
    with pytest.raises(RuntimeError, match=r"^of the ranks$"), Watch(["GPU-1"], nvml=nvml):
        raise RuntimeError("of the ranks")
