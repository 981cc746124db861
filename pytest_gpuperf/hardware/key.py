"""The name under which a machine's baselines are kept, and the facts that belong to it.

Software is no part of the name: two versions of it are what one wants to compare.
"""

import re
from collections import Counter
from collections.abc import Sequence

from pytest_gpuperf.hardware.device import Gpu, HardwareError
from pytest_gpuperf.hardware.linkage import Linkage

GIB = 2**30


def make_hardware_key(gpus: Sequence[Gpu], linkage: Linkage) -> str:
    """Names a set of GPUs and their links, for example 8x-nvidia-h200-nv18.

    Raises:
        HardwareError: Without GPUs, for there is nothing to name.
    """
    _require_gpus(gpus)
    models = Counter(_make_slug(gpu.name) for gpu in gpus)
    key = "+".join(f"{count}x-{model}" for model, count in sorted(models.items()))
    return f"{key}-{linkage.label}" if linkage.label else key


def match_fields(gpus: Sequence[Gpu], linkage: Linkage) -> dict[str, str | int | float | None]:
    """Lists what a reader compares before trusting a baseline.

    Of unlike GPUs it gives the smallest memory and power limit.

    Raises:
        HardwareError: Without GPUs.
    """
    _require_gpus(gpus)
    limits = [gpu.power_limit_watts for gpu in gpus if gpu.power_limit_watts is not None]
    return {
        "gpu_name": "+".join(sorted({gpu.name for gpu in gpus})),
        "gpu_count": len(gpus),
        "topology": linkage.label,
        "cc": "+".join(f"{major}.{minor}" for major, minor in sorted({gpu.compute_capability for gpu in gpus})),
        "mem_gib": round(min(gpu.memory_bytes for gpu in gpus) / GIB),
        "power_limit_w": min(limits) if len(limits) == len(gpus) else None,
    }


def _make_slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _require_gpus(gpus: Sequence[Gpu]) -> None:
    if not gpus:
        raise HardwareError("got 0 GPUs to name, expected at least 1: run on a machine with GPUs, or show some to CUDA")
