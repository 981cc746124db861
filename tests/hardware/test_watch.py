"""GPUs observed while something runs."""

import threading

import pytest

from pytest_gpuperf.hardware.device import ClockReason, HardwareError, Xid
from pytest_gpuperf.hardware.nvml import Nvml
from pytest_gpuperf.hardware.watch import Watch
from tests.hardware.fake_nvml import SWITCH, Device, FakeError, FakeNvml


def test_each_gpu_is_looked_at_before_during_and_after() -> None:
    device = Device("GPU-1", reasons=1, links={0: SWITCH})
    nvml = FakeNvml([device, Device("GPU-2")])
    idle, slow, hot = (
        frozenset({reason})
        for reason in (ClockReason.IDLE, ClockReason.HARDWARE_SLOWDOWN, ClockReason.HARDWARE_THERMAL_SLOWDOWN)
    )
    with Watch(["GPU-1", "GPU-2"], Nvml(nvml), interval=0.005) as watch:
        assert [seen.reasons for seen in watch.seen][:2] == [idle, frozenset()]
        device.reasons = 8
        started = nvml.looks
        while nvml.looks < started + 4:
            threading.Event().wait(0.001)
        device.reasons = 64
    of_first = [seen.reasons for seen in watch.seen if seen.uuid == "GPU-1"]
    assert (of_first[0], of_first[-1]) == (idle, hot)
    assert slow in of_first
    links = [seen.nvlinks for seen in watch.seen if seen.uuid == "GPU-1"]
    assert (links[0], links[-1], set(links[1:-1])) == (1, 1, {None})
    assert (nvml.opened, nvml.closed) == (1, 1)


def test_a_short_run_is_looked_at_twice() -> None:
    with Watch(["GPU-1"], Nvml(FakeNvml([Device("GPU-1")])), interval=60.0) as watch:
        pass
    assert len(watch.seen) == 2


def test_a_gpu_that_is_lost_meanwhile_is_an_error() -> None:
    nvml = FakeNvml([Device("GPU-1")])
    message = r"NVML could not describe a GPU: got 'NVML error 15'"
    with pytest.raises(HardwareError, match=message), Watch(["GPU-1"], Nvml(nvml), interval=60.0):
        nvml.lost = "GPU-1"


def test_an_error_of_what_is_watched_goes_before_the_watchs_own() -> None:
    nvml = FakeNvml([Device("GPU-1")], lost="GPU-1")
    with pytest.raises(RuntimeError, match=r"^of the ranks$"), Watch(["GPU-1"], Nvml(nvml)):
        raise RuntimeError("of the ranks")


def test_a_watch_listens() -> None:
    device = Device("GPU-1")
    nvml = FakeNvml([device])
    with Watch(["GPU-1"], Nvml(nvml), interval=60.0) as watch:
        device.xids += [31]
    assert watch.xids == (Xid("GPU-1", 31),)
    assert nvml.sets == 0


@pytest.mark.parametrize("function", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"])
@pytest.mark.parametrize("error", [FakeNvml.NVML_ERROR_NO_PERMISSION, FakeNvml.NVML_ERROR_GPU_IS_LOST, 999])
def test_no_measurement_fails_because_nobody_may_listen(
    monkeypatch: pytest.MonkeyPatch, function: str, error: int
) -> None:
    def refuse(self: FakeNvml, *args: object) -> None:
        raise FakeError(error)

    monkeypatch.setattr(FakeNvml, function, refuse)
    nvml = FakeNvml([Device("GPU-1")])
    with Watch(["GPU-1"], Nvml(nvml), interval=60.0) as watch:
        pass
    assert (watch.xids, nvml.sets) == ((), 0)
