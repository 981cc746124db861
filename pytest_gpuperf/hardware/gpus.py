"""The GPUs that CUDA would show this process, described through NVML."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pynvml

from pytest_gpuperf.hardware.errors import HardwareError
from pytest_gpuperf.hardware.line_rates import NVLINK
from pytest_gpuperf.hardware.nvml import Nvml, if_supported, nvml_session


@dataclass(frozen=True, slots=True)
class Gpu:
    """One whole GPU."""

    uuid: str
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    pci_bus_id: str
    nvlinks: int
    """Active NVLinks."""
    nvlink_version: int | None
    """NVLink generation; None without active links, or on an architecture that line_rates does not list."""
    power_limit_watts: float | None


def visible_gpus(environ: Mapping[str, str], nvml: Nvml = pynvml) -> tuple[Gpu, ...]:
    """Lists the GPUs in the order CUDA would, without making a CUDA context.

    Args:
        environ: The environment to read CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER from.
        nvml: The pynvml module.

    Returns:
        The GPUs; empty without an NVML library, driver or GPU.

    Raises:
        HardwareError: For MIG slices, for a list that CUDA reads otherwise than it looks, and for a GPU that
            NVML cannot describe.
    """
    with nvml_session(nvml) as present:
        if not present:
            return ()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        visible = environ.get("CUDA_VISIBLE_DEVICES")
        chosen = visible_indices(visible, [nvml.nvmlDeviceGetUUID(handle) for handle in handles])
        if visible is not None and chosen and not visible.strip().startswith("GPU-"):
            _require_one_order(environ, [nvml.nvmlDeviceGetName(handle) for handle in handles])
        return tuple(_describe(nvml, handles[index]) for index in chosen)


def visible_indices(visible: str | None, uuids: Sequence[str]) -> tuple[int, ...]:
    """Translates CUDA_VISIBLE_DEVICES to indices into uuids.

    By CUDA's rule the first invalid entry ends the list. The first entry says whether the list is of indices
    or of UUIDs; an entry of the other kind is invalid, as in torch.cuda._parse_visible_devices.

    Args:
        visible: The variable's value, None where it is unset.
        uuids: UUIDs of all GPUs, in CUDA's order.

    Raises:
        HardwareError: For a MIG slice or a GPU named twice.
    """
    if visible is None:
        return tuple(range(len(uuids)))
    entries = [entry.strip() for entry in visible.split(",")]
    find = _by_uuid if entries[0].startswith("GPU-") else _by_index
    indices: list[int] = []
    for entry in entries:
        if entry.startswith("MIG-"):
            raise HardwareError(
                f"CUDA_VISIBLE_DEVICES={visible!r} names the MIG slice {entry!r}, expected whole GPUs, which "
                "NCCL needs: name GPUs by index or GPU- UUID, and turn MIG off with nvidia-smi -mig 0"
            )
        index = find(entry, uuids)
        if index is None:
            break
        if index in indices:
            raise HardwareError(
                f"CUDA_VISIBLE_DEVICES={visible!r} names GPU {index} twice, expected each once (CUDA would "
                f"show no GPU at all): remove the second, {entry!r}"
            )
        indices.append(index)
    return tuple(indices)


def _by_index(entry: str, uuids: Sequence[str]) -> int | None:
    digits = re.match(r"[0-9]+", entry)  # CUDA reads entries as strtoul does: "1abc" is 1
    return int(digits[0]) if digits is not None and int(digits[0]) < len(uuids) else None


def _by_uuid(entry: str, uuids: Sequence[str]) -> int | None:
    matches = [index for index, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _require_one_order(environ: Mapping[str, str], names: Sequence[str]) -> None:
    # CUDA sorts unlike GPUs fastest first, which NVML cannot tell: indices would name other GPUs in CUDA.
    order = environ.get("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    if len(set(names)) > 1 and order != "PCI_BUS_ID":
        raise HardwareError(
            f"CUDA_VISIBLE_DEVICES={environ['CUDA_VISIBLE_DEVICES']!r} counts unlike GPUs, "
            f"{sorted(set(names))!r}, under CUDA_DEVICE_ORDER={order!r}, expected 'PCI_BUS_ID': "
            "set it, or name the GPUs by UUID"
        )


def _describe(nvml: Nvml, handle: Any) -> Gpu:
    uuid = nvml.nvmlDeviceGetUUID(handle)
    mig = if_supported(nvml, nvml.nvmlDeviceGetMigMode, handle)
    if mig is not None and mig[0]:
        raise HardwareError(
            f"GPU {uuid!r} is split into MIG slices, expected whole GPUs, which NCCL needs: turn MIG off "
            "with nvidia-smi -mig 0, or leave the GPU out of CUDA_VISIBLE_DEVICES"
        )
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    nvlinks = len(active_links(nvml, handle))
    rate = NVLINK.get((major, minor)) if nvlinks else None
    milliwatts = if_supported(nvml, nvml.nvmlDeviceGetPowerManagementLimit, handle)
    return Gpu(
        uuid=uuid,
        name=nvml.nvmlDeviceGetName(handle),
        memory_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
        compute_capability=(major, minor),
        pci_bus_id=bus_id(nvml.nvmlDeviceGetPciInfo(handle)),
        nvlinks=nvlinks,
        nvlink_version=None if rate is None else rate.version,
        power_limit_watts=None if milliwatts is None else milliwatts / 1000,
    )


def active_links(nvml: Nvml, handle: Any) -> tuple[int, ...]:
    """Lists the numbers of a GPU's active NVLinks."""
    return tuple(
        link
        for link in range(nvml.NVML_NVLINK_MAX_LINKS)
        if if_supported(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link)
    )


def bus_id(pci_info: Any) -> str:
    """Spells a PCI address one way, so that two of them compare equal."""
    raw = pci_info.busId
    return (raw.decode() if isinstance(raw, bytes) else str(raw)).upper()
