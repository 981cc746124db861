"""What data sheets and standards allow at most: rates of links, in bytes/s, and of matrix units, in FLOP/s."""

from collections.abc import Mapping

# Bytes/s of one NVLink, one direction. Keyed by compute capability, as in NCCL's src/graph/topo.h, because
# nvmlDeviceGetNvLinkVersion does not name the generation: users report that it answers 7 on H100, which nvml.h calls
# NVLink 5. Rates are the datasheets' totals over both directions, halved and divided by the links: P100 160 GB/s over
# 4, V100 300 over 6, Quadro RTX 8000 100 over 2, A100 600 over 12, RTX A6000 112.5 over 4, H100 and H200 900 over 18,
# B200 and B300 1800 over 18.
NVLINK: Mapping[tuple[int, int], float] = {
    (6, 0): 20e9,
    (7, 0): 25e9,
    (7, 5): 25e9,
    (8, 0): 25e9,
    (8, 6): 14.0625e9,
    (9, 0): 25e9,
    (10, 0): 50e9,
    (10, 3): 50e9,
}

# Bytes/s of one lane, one direction, by PCIe generation: PCI-SIG's transfers/s times the encoding (8b/10b,
# 128b/130b, and 236 payload bytes in a flit of 256).
PCIE_LANE: Mapping[int, float] = {
    1: 2.5e9 * 8 / 10 / 8,
    2: 5e9 * 8 / 10 / 8,
    3: 8e9 * 128 / 130 / 8,
    4: 16e9 * 128 / 130 / 8,
    5: 32e9 * 128 / 130 / 8,
    6: 64e9 * 236 / 256 / 8,
}

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

_VOLTA_SXM = {"float64": 7.8e12, "float32": 15.7e12, "float16": 125e12}
_VOLTA_PCIE = {"float64": 7e12, "float32": 14e12, "float16": 112e12}
_B200 = {
    "float64": 37e12,
    "float32": 1.125e15,
    "bfloat16": 2.25e15,
    "float16": 2.25e15,
    "float8_e4m3fn": 4.5e15,
    "float8_e5m2": 4.5e15,
}
_GB200 = {
    "float64": 40e12,
    "float32": 1.25e15,
    "bfloat16": 2.5e15,
    "float16": 2.5e15,
    "float8_e4m3fn": 5e15,
    "float8_e5m2": 5e15,
}
_L4 = {
    "float32": 60e12,
    "bfloat16": 121e12,
    "float16": 121e12,
    "float8_e4m3fn": 242.5e12,
    "float8_e5m2": 242.5e12,
}
_L40S = {
    "float32": 183e12,
    "bfloat16": 362e12,
    "float16": 362e12,
    "float8_e4m3fn": 733e12,
    "float8_e5m2": 733e12,
}

# FLOP/s without sparsity, by the beginning of the GPU's name, the longest first. float32 is TF32's, which bounds
# float32 proper too.
# A100: NVIDIA A100 Tensor Core GPU Architecture, whitepaper 1.0, table 1.
# H100: NVIDIA H100 Tensor Core GPU Architecture, whitepaper 1.04, table 2 and appendix A.
# H200: NVIDIA H200 Tensor Core GPU, data sheet; the same processor as the H100 SXM.
# B200: NVIDIA HGX B200, specifications, an eighth of the board; GB200: NVIDIA GB200 NVL72, data sheet, a 72nd.
# Both give most rates with sparsity: here they are halved.
# V100, T4, A10, A30, L4, L40S: the GPU's data sheet; L4's and L40S's are halved, too. V100's and T4's float32 is
# float32 proper, as they have no TF32.
PEAKS: Mapping[str, Mapping[str, float]] = {
    "NVIDIA H100 80GB HBM3": _HOPPER_SXM,
    "NVIDIA H100 PCIe": _HOPPER_PCIE,
    "NVIDIA A100": _AMPERE,
    "NVIDIA H200 NVL": {},  # a PCIe card, whose peaks are lower than those of the SXM module and not known here
    "NVIDIA H200": _HOPPER_SXM,
    "NVIDIA GB200": _GB200,
    "NVIDIA B200": _B200,
    "NVIDIA L40S": _L40S,
    "NVIDIA L40": {},  # another clock and power than the L40S; not known here
    "NVIDIA L4": _L4,
    "NVIDIA A30": {"float64": 10.3e12, "float32": 82e12, "bfloat16": 165e12, "float16": 165e12},
    "NVIDIA A10G": {},  # a cloud's own, whose data sheet is not public
    "NVIDIA A10": {"float32": 62.5e12, "bfloat16": 125e12, "float16": 125e12},
    "Tesla V100-SXM2": _VOLTA_SXM,
    "Tesla V100-PCIE": _VOLTA_PCIE,
    "Tesla T4": {"float32": 8.1e12, "float16": 65e12},
}


def find_peak(name: str, dtype: str) -> float | None:
    """FLOP/s of one GPU's matrix units; None for a GPU or dtype that the table does not have.

    Args:
        name: ``Gpu.name``.
        dtype: As torch names it, without its module.
    """
    found = next((peaks for start, peaks in PEAKS.items() if name.startswith(start)), None)
    return None if found is None else found.get(dtype)
