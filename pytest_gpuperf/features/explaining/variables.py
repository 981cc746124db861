"""Which of the variables that differ from a record a run may put back to try what they cost."""

from collections.abc import Mapping

from pytest_gpuperf.baselines.differences import sort_by_likelihood

_MULTICAST = "it may keep NVLink multicast off on purpose, and on shared machines that is a policy"
_FINDS = "processes find {} by it"

KEPT: Mapping[str, str] = {
    "NCCL_NVLS_ENABLE": _MULTICAST,
    "NVSHMEM_DISABLE_NVLS": _MULTICAST,
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": _MULTICAST,
    "CUDA_VISIBLE_DEVICES": "it chooses the GPUs, and other GPUs are another machine",
    "NVIDIA_VISIBLE_DEVICES": "it chooses the GPUs, and other GPUs are another machine",
    "LD_LIBRARY_PATH": _FINDS.format("the driver and its libraries"),
    "LD_PRELOAD": _FINDS.format("their libraries"),
    "PATH": _FINDS.format("programs"),
    "PYTHONPATH": _FINDS.format("the code that is measured"),
}
"""Variables that are never changed, with the reason."""


def split_undoable(differs: Mapping[str, tuple[str, str]]) -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
    """Return the variables that can be put back, the likeliest first, and the others with the reason.

    Versions are neither: no process can change them.

    Args:
        differs: Names with what the record has and what is there now, as ``differences.differing`` returns them.
    """
    variables = {name: change for name, change in sort_by_likelihood(differs) if name.isupper()}
    return (
        {name: change for name, change in variables.items() if name not in KEPT},
        {name: KEPT[name] for name in variables if name in KEPT},
    )
