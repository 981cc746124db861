"""What NVML tells of a GPU at one moment, as far as it bears on a measurement."""

from dataclasses import dataclass
from typing import Any

import pynvml

from pytest_gpuperf.hardware.nvml import Nvml, if_supported

# nvml.h, "Clocks event reasons". A GPU at its power limit under a GEMM is as it should be; the others are not.
IDLE = 0x1
POWER_CAP = 0x4
SLOWDOWNS = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


@dataclass(frozen=True, slots=True)
class Observation:
    """One GPU at one moment. None: the GPU, or the machine it is virtual on, does not tell."""

    uuid: str
    reasons: int | None
    """Why clocks are not higher, bits of nvml.h."""
    sm_hertz: float | None
    nvlinks: int | None
    """Active NVLinks."""
    memory_errors: int | None
    """Uncorrected ECC errors since the driver was loaded."""
    processes: frozenset[int] | None
    """Process ids that compute on it, as the host of the driver counts them."""
    free_bytes: int
    kelvin: float | None
    watts: float | None


def observe(uuid: str, nvml: Nvml = pynvml, *, links: bool = True) -> Observation:
    """Asks NVML, in whose session the caller is, about a GPU.

    Args:
        uuid: The GPU's.
        nvml: The pynvml module.
        links: Whether its NVLinks are counted too, which takes a question for each.
    """
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    megahertz = if_supported(nvml, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)
    celsius = if_supported(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
    milliwatts = if_supported(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
    processes = if_supported(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return Observation(
        uuid=uuid,
        reasons=if_supported(nvml, nvml.nvmlDeviceGetCurrentClocksEventReasons, handle),
        sm_hertz=None if megahertz is None else megahertz * 1e6,
        nvlinks=_active_links(nvml, handle) if links else None,
        memory_errors=if_supported(
            nvml,
            nvml.nvmlDeviceGetTotalEccErrors,
            handle,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        ),
        processes=None if processes is None else frozenset(process.pid for process in processes),
        free_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).free,
        kelvin=None if celsius is None else celsius + 273.15,
        watts=None if milliwatts is None else milliwatts / 1e3,
    )


def _active_links(nvml: Nvml, handle: Any) -> int | None:
    states = [if_supported(nvml, nvml.nvmlDeviceGetNvLinkState, handle, i) for i in range(nvml.NVML_NVLINK_MAX_LINKS)]
    told = [state for state in states if state is not None]
    return sum(told) if told else None
