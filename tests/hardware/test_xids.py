"""What the driver reports of GPUs while somebody listens."""

import pynvml
import pytest

from pytest_gpuperf.hardware.errors import HardwareError
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


def test_a_machine_that_lets_nobody_listen_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device("GPU-1", listening=False)
    listener = XidListener(["GPU-1"], FakeNvml([device]))
    device.xids += [31]
    assert listener.close() == ()

    def refuse(self: FakeNvml) -> list[Device]:
        raise FakeError(FakeNvml.NVML_ERROR_NO_PERMISSION)

    monkeypatch.setattr(FakeNvml, "nvmlEventSetCreate", refuse)
    assert XidListener(["GPU-1"], FakeNvml([device])).close() == ()


def test_a_watch_listens() -> None:
    device = Device("GPU-1")
    nvml = FakeNvml([device])
    with Watch(["GPU-1"], interval=60.0, nvml=nvml) as watch:
        device.xids += [31]
    assert watch.xids == (Xid("GPU-1", 31),)
    assert nvml.sets == 0


def test_a_gpu_that_is_lost_while_somebody_listens_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(self: FakeNvml, events: list[Device], milliseconds: int) -> None:
        raise FakeError(FakeNvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setattr(FakeNvml, "nvmlEventSetWait_v2", lost)
    message = r"NVML could not describe a GPU: got 'NVML error 15'"
    with pytest.raises(HardwareError, match=message), Watch(["GPU-1"], nvml=FakeNvml([Device("GPU-1")])):
        pass
