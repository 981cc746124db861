"""What the DeepSpeed suite does on GPUs alone, with an NVML that is none."""

import pynvml
import pytest

from suites.shared.deepspeed_engine import visible_numbers


def test_deepspeed_reads_gpus_as_nvmls_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", ["GPU-a", "GPU-b", "GPU-c"].index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetIndex", lambda handle: handle)
    assert visible_numbers("GPU-c,GPU-a") == "2,0"
