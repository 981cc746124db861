"""What the driver reports of GPUs while somebody listens."""

import pynvml
import pytest

from pytest_gpuperf.hardware.watch import Watch
from pytest_gpuperf.hardware.xids import Xid, XidListener
from tests.hardware.fake_nvml import Device, FakeError, FakeNvml


def test_the_numbers_are_those_of_nvml() -> None:
    assert FakeNvml.nvmlEventTypeXidCriticalError == pynvml.nvmlEventTypeXidCriticalError
    assert FakeNvml.NVML_ERROR_TIMEOUT == pynvml.NVML_ERROR_TIMEOUT


def test_reports_are_kept_with_the_gpu_that_they_are_of() -> None:
    first, second = Device("GPU-1", xids=[13]), Device("GPU-2")
    nvml = FakeNvml([first, second])
    listener = XidListener(["GPU-1", "GPU-2"], nvml)  # the 13 was before
    second.xids += [94, 48]
    first.xids += [31]
    assert listener.close() == (Xid("GPU-1", 31), Xid("GPU-2", 94), Xid("GPU-2", 48))
    assert listener.close() == ()
    assert nvml.sets == 0


def test_a_machine_that_lets_nobody_listen_reports_nothing() -> None:
    device = Device("GPU-1", listening=False)
    listener = XidListener(["GPU-1"], FakeNvml([device]))
    device.xids += [31]
    assert listener.close() == ()


def test_a_watch_listens() -> None:
    device = Device("GPU-1")
    nvml = FakeNvml([device])
    with Watch(["GPU-1"], interval=60.0, nvml=nvml) as watch:
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
    with Watch(["GPU-1"], interval=60.0, nvml=nvml) as watch:
        pass
    assert (watch.xids, nvml.sets) == ((), 0)
