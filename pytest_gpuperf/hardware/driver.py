"""The version of the NVIDIA driver."""

import pynvml

from pytest_gpuperf.hardware.nvml import Nvml, nvml_session


def driver_version(nvml: Nvml = pynvml) -> str | None:
    """The driver's version; None without a driver.

    Raises:
        HardwareError: NVML is there and fails.
    """
    with nvml_session(nvml) as present:
        if not present:
            return None
        version = nvml.nvmlSystemGetDriverVersion()
    return version.decode() if isinstance(version, bytes) else str(version)
