"""What a GPU has used and moved since its driver was loaded, as NVML counts it."""

from dataclasses import dataclass
from typing import Any

import pynvml

from pytest_gpuperf.hardware.gpus import active_links
from pytest_gpuperf.hardware.nvml import Nvml, if_supported

_ALL_LINKS = 2**32 - 1  # UINT_MAX as the scope of a field: all links together (nvml.h, "NVLink Throughput counters")


@dataclass(frozen=True, slots=True)
class Counters:
    """One GPU at one moment. None: the GPU, or the machine it is virtual on, does not count it."""

    joules: float | None
    """Energy that the whole board took."""
    nvlink_sent: int | None
    """Bytes of payload, over all its links."""
    nvlink_received: int | None


def counters(uuid: str, nvml: Nvml = pynvml) -> Counters:
    """Asks NVML, in whose session the caller is, about a GPU."""
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    millijoules = if_supported(nvml, nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
    return Counters(
        joules=None if millijoules is None else millijoules / 1e3,
        nvlink_sent=_nvlink_bytes(nvml, handle, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX),
        nvlink_received=_nvlink_bytes(nvml, handle, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX),
    )


def _nvlink_bytes(nvml: Nvml, handle: Any, field: int) -> int | None:
    for scopes in ((_ALL_LINKS,), active_links(nvml, handle)):
        if not scopes:
            continue
        answers = if_supported(nvml, nvml.nvmlDeviceGetFieldValues, handle, [(field, scope) for scope in scopes])
        if answers is not None and all(answer.nvmlReturn == nvml.NVML_SUCCESS for answer in answers):
            return 1024 * sum(int(answer.value.ullVal) for answer in answers)  # NVML counts KiB
    return None
