"""The numbers of the model, each with its source."""

from collections.abc import Mapping

MARGIN = 0.8
"""A metric is plausible down to this share of what the worst healthy machine is known to do: the shares below are of
few machines, and others differ in boards, drivers and versions of NCCL."""

NCCL_LINK: Mapping[tuple[int, int], float] = {
    (6, 0): 18.0e9,
    (7, 0): 20.0e9,
    (7, 5): 20.0e9,
    (8, 0): 20.0e9,
    (8, 6): 12.0e9,
    (9, 0): 20.6e9,
    (10, 0): 40.1e9,
    (10, 3): 40.1e9,
}
"""Bytes/s of one NVLink, one direction, that NCCL's kernels reach, by compute capability: NCCL 2.30.7,
src/graph/topo.h, SM60_NVLINK_BW to SM100_NVLINK_BW."""

NCCL_PCIE = 12.0 / 15.754
"""Share of a PCIe link's rate that NCCL's kernels reach: the same file, PCI_BW 12.0 for generation 3 x16."""

RING_BASE, RING_STEP = 8.4e-6, {"nvlink": 3.4e-6, "pcie": 5.7e-6, "network": 14.0e-6}
"""Seconds of a ring's start, and of each of its steps by link: NCCL 2.30.7, src/graph/tuning.cc, baseLatencies and
hwLatencies of the protocol Simple, the slowest one."""

LARGE_BYTES = 256 * 2**20
"""From here on collectives run at their peak on NVLink: https://github.com/NVIDIA/nccl-tests/issues/212."""

LARGE: Mapping[str, float] = {
    "all_reduce": 0.89,
    "all_gather": 0.72,
    "reduce_scatter": 0.71,
    "all_to_all": 0.89,
    "send_recv": 0.94,
}
"""Shares of NCCL's rate for large messages: the least of 2 and 4 x H200 (baselines/, 1 GiB: 2 ranks) and 8 x H200
(358, 343, 343, 329, 351 of 370.8 GB/s in the order above)."""

MEDIUM: Mapping[str, float] = {
    "all_reduce": 0.66,
    "all_gather": 0.57,
    "reduce_scatter": 0.54,
    "all_to_all": 0.66,
    "send_recv": 0.21,
}
"""Lower ends for smaller messages, without the latency: the least of the same machines at 64 MiB; of all_reduce at
16 MiB. Rings of sends have a real dip there: 78 GB/s on 8 x H200, in nccl-tests too."""

OTHER_OP = 0.5
"""The lower end for operations without records (broadcast, reduce, gather, scatter): below all recorded ones."""

THROUGH_HOST = 0.3
"""Share of PCIe's rate if the data go through the host's memory (PHB, NODE, SYS): two pairs at a time share what one
reaches, 37 of 63 GB/s with direct access turned off: https://github.com/NVIDIA/nccl/issues/1264."""

DIRECT = ("pix", "pxb")
"""Links through PCIe switches alone, as nvidia-smi topo -m has them; farther apart the data go through the host."""

RDMA = 0.5
"""Share of an adapter's rate that messages through it reach at least; what suites/network asks of each port."""

TCP = 0.94
"""Share of a link's rate that is left to TCP in packets of 1500 bytes: 1448 of 1538 with all headers and gaps."""

TCP_THREAD = 1.25e9
"""Bytes/s at which one thread's TCP need not be faster, whatever the link: NCCL 2.30.7 takes an interface without a
known speed for 10 Gbit/s, and has one thread for a connection unless NCCL_SOCKET_NTHREADS says otherwise."""

TCP_BYTES = 2**20
"""Bytes of a message for each rank from which on a latency of 0.1 ms for each step is lost in the margin."""

OF_LIMIT: Mapping[str, float] = {
    "links": 0.82,
    "PCIe": 0.70,
    "memory": 0.82,
    "matrix units": 0.65,
}
"""Shares of their limits that plain work reaches. Links: peer copies of H100 SXM, 371 of 450 GB/s
(https://github.com/NVIDIA/nccl/issues/1264); of H200 386. PCIe: pinned copies, 55.6 of 63 GB/s on generation 5
(https://developer.nvidia.com/blog/?p=115566), less on boards with switches. Memory: copies on H200, 2 x 2037 of
4917 GB/s. Matrix units: the slowest of the recorded products on H200, a backward pass with its collectives, 65 %."""

TRAFFIC_AT_MOST = 1.1
"""Bytes over links against the formula's: the protocol LL128 sends 128 bytes for 120 (NCCL, src/graph/tuning.cc)."""

EVENNESS_AT_LEAST = 0.21
"""Share of what its neighbours promise that the slowest size of a curve reaches: sends on 8 x H200 at 64 MiB."""

SPEEDUP_AT_LEAST = 0.8
"""A technique that costs a fifth of the plain way is none; what it gains depends on far more than a data sheet."""

WATTS: Mapping[str, float] = {
    "NVIDIA GB200": 1200.0,
    "NVIDIA B200": 1000.0,
    "NVIDIA H200 NVL": 600.0,
    "NVIDIA H200": 700.0,
    "NVIDIA H100 80GB HBM3": 700.0,
    "NVIDIA H100 PCIe": 350.0,
    "NVIDIA A100-SXM4": 400.0,
    "NVIDIA A100 80GB PCIe": 300.0,
    "NVIDIA A100-PCIE-40GB": 250.0,
    "NVIDIA L40S": 350.0,
    "NVIDIA L4": 72.0,
    "NVIDIA A30": 165.0,
    "NVIDIA A10": 150.0,
    "Tesla V100-SXM2": 300.0,
    "Tesla V100-PCIE": 250.0,
    "Tesla T4": 70.0,
}
"""Power limits for which the data sheets' peaks hold, by the beginning of the GPU's name, longer ones first: each GPU's
data sheet, "max thermal design power"."""
