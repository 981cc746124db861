"""One NVML session at a time, opened and closed in pairs.

NVML answers without a CUDA context, so the pytest process may ask it and still fork ranks afterwards.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from pytest_gpuperf.hardware.errors import HardwareError

Nvml: TypeAlias = Any
"""The pynvml module or, in tests, an object with the same functions."""


@contextmanager
def nvml_session(nvml: Nvml) -> Iterator[bool]:
    """Yields whether this machine has NVML and a driver; inside, NVML's failures become HardwareError."""
    absent = {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        nvml.NVML_ERROR_DRIVER_NOT_LOADED,
        nvml.NVML_ERROR_GPU_NOT_FOUND,
    }
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if error.value not in absent:
            raise HardwareError(
                f"NVML did not start: got {str(error)!r}, expected a driver and a library of one version: "
                "check that nvidia-smi runs, and restart after a driver update"
            ) from error
        yield False
        return
    try:
        yield True
    except nvml.NVMLError as error:
        raise HardwareError(
            f"NVML could not describe a GPU: got {str(error)!r}: check the GPU's health with nvidia-smi -q"
        ) from error
    finally:
        nvml.nvmlShutdown()


def if_supported(nvml: Nvml, query: Callable[..., Any], *args: Any) -> Any:
    """Returns None where this GPU, link, virtual machine or container has no answer to the query."""
    try:
        return query(*args)
    except nvml.NVMLError as error:
        # Links beyond the last one are an invalid argument on some GPUs and unsupported on others.
        unanswered = {nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.NVML_ERROR_NO_PERMISSION}
        if error.value in unanswered:
            return None
        raise
