"""Line rates of one link, per direction, as data."""

from collections.abc import Mapping
from typing import NamedTuple


class NvlinkRate(NamedTuple):
    """NVLink as one GPU architecture has it."""

    version: int
    """NVLink generation."""
    bytes_per_second: float
    """One link, one direction."""


# Keyed by compute capability, as in NCCL's src/graph/topo.h, because nvmlDeviceGetNvLinkVersion does not name
# the generation: users report that it answers 7 on H100, which nvml.h calls NVLink 5. Rates are the datasheets'
# totals over both directions, halved and divided by the links: P100 160 GB/s over 4, V100 300 over 6, Quadro
# RTX 8000 100 over 2, A100 600 over 12, RTX A6000 112.5 over 4, H100 and H200 900 over 18, B200 and B300 1800
# over 18.
NVLINK: Mapping[tuple[int, int], NvlinkRate] = {
    (6, 0): NvlinkRate(1, 20e9),
    (7, 0): NvlinkRate(2, 25e9),
    (7, 5): NvlinkRate(2, 25e9),
    (8, 0): NvlinkRate(3, 25e9),
    (8, 6): NvlinkRate(3, 14.0625e9),
    (9, 0): NvlinkRate(4, 25e9),
    (10, 0): NvlinkRate(5, 50e9),
    (10, 3): NvlinkRate(5, 50e9),
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
