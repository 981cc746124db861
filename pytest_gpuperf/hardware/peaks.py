"""What the matrix units of a GPU can do at most: data sheets' figures without sparsity, in FLOP/s."""

from collections.abc import Mapping

_AMPERE = {"float64": 19.5e12, "float32": 156e12, "bfloat16": 312e12, "float16": 312e12}
_HOPPER_SXM = {
    "float64": 66.9e12,
    "float32": 494.7e12,
    "bfloat16": 989.4e12,
    "float16": 989.4e12,
    "float8_e4m3fn": 1978.9e12,
    "float8_e5m2": 1978.9e12,
}
_HOPPER_PCIE = {
    "float64": 51.2e12,
    "float32": 378e12,
    "bfloat16": 756e12,
    "float16": 756e12,
    "float8_e4m3fn": 1513e12,
    "float8_e5m2": 1513e12,
}

# By the beginning of NVML's name, the longest first. float32 is TF32's, which bounds float32 proper too.
# A100: NVIDIA A100 Tensor Core GPU Architecture, whitepaper 1.0, table 1.
# H100: NVIDIA H100 Tensor Core GPU Architecture, whitepaper 1.04, table 2 and appendix A.
# H200: NVIDIA H200 Tensor Core GPU, data sheet; the same processor as the H100 SXM.
PEAKS: Mapping[str, Mapping[str, float]] = {
    "NVIDIA H100 80GB HBM3": _HOPPER_SXM,
    "NVIDIA H100 PCIe": _HOPPER_PCIE,
    "NVIDIA A100": _AMPERE,
    "NVIDIA H200 NVL": {},  # a PCIe card, whose peaks are lower than those of the SXM module and not known here
    "NVIDIA H200": _HOPPER_SXM,
}


def peak(name: str, dtype: str) -> float | None:
    """FLOP/s of one GPU's matrix units; None for a GPU or dtype that the table does not have.

    Args:
        name: As NVML tells it.
        dtype: As torch names it, without its module.
    """
    found = next((peaks for start, peaks in PEAKS.items() if name.startswith(start)), None)
    return None if found is None else found.get(dtype)
