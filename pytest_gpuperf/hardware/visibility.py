"""Which GPUs CUDA_VISIBLE_DEVICES names, by CUDA's own rule."""

import re
from collections.abc import Mapping, Sequence

from pytest_gpuperf.hardware.device import HardwareError


def list_visible_indices(visible: str | None, uuids: Sequence[str]) -> tuple[int, ...]:
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
    find = _find_by_uuid if entries[0].startswith("GPU-") else _find_by_index
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


def require_one_order(environ: Mapping[str, str], names: Sequence[str]) -> None:
    """Refuses a CUDA_VISIBLE_DEVICES whose indices would name other GPUs in CUDA than in the order given here.

    CUDA sorts unlike GPUs fastest first, and only CUDA can tell which are faster.

    Args:
        environ: Has CUDA_VISIBLE_DEVICES, and perhaps CUDA_DEVICE_ORDER.
        names: The models of all GPUs.

    Raises:
        HardwareError: The GPUs are unlike, and their order is not that of their PCI addresses.
    """
    order = environ.get("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    if len(set(names)) > 1 and order != "PCI_BUS_ID":
        raise HardwareError(
            f"CUDA_VISIBLE_DEVICES={environ['CUDA_VISIBLE_DEVICES']!r} counts unlike GPUs, "
            f"{sorted(set(names))!r}, under CUDA_DEVICE_ORDER={order!r}, expected 'PCI_BUS_ID': "
            "set it, or name the GPUs by UUID"
        )


def _find_by_index(entry: str, uuids: Sequence[str]) -> int | None:
    digits = re.match(r"[0-9]+", entry)  # CUDA reads entries as strtoul does: "1abc" is 1
    return int(digits[0]) if digits is not None and int(digits[0]) < len(uuids) else None


def _find_by_uuid(entry: str, uuids: Sequence[str]) -> int | None:
    matches = [index for index, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None
