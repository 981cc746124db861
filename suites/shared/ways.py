"""The ways that NCCL has, and the variables that leave it no other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context, NcclLog
from suites.shared.ring import ring


@dataclass(frozen=True, slots=True)
class Way:
    """A transport of NCCL, and how it is forced."""

    name: str
    proof: str
    """What NCCL's log calls it; its variants begin alike."""
    environ: Mapping[str, str] = field(default_factory=dict)
    apart: bool = False
    """Whether NCCL is to take each rank for a node of its own."""

    def require(self, logs: Sequence[NcclLog]) -> None:
        """Skips the test if NCCL has connected any rank otherwise, or has not taken nodes for what they are to be.

        A variable is a wish: what NCCL does on a machine without this way, its log alone tells.
        """
        found = sorted({transport for log in logs for transport in log.transports})
        if not all(log.over(self.proof) for log in logs):
            pytest.skip(f"NCCL has no {self.proof} here: it connects these GPUs by {', '.join(found) or 'nothing'}")
        # Groups of fewer ranks, which an earlier test of these ranks may have had, lie on fewer nodes.
        nodes = {of.nodes for log in logs for of in log.communicators if of.ranks == len(logs)}
        if nodes != {len(logs) if self.apart else 1}:
            pytest.skip(f"NCCL sees {sorted(nodes)} nodes here, which {self.name} is not measured for")


P2P = Way("P2P/CUMEM", "P2P/CUMEM", {"NCCL_P2P_READ_ENABLE": "0"})
# Each process sees its own GPU alone, as containers and launchers often have it. That hides no link from NCCL.
ONE_GPU_EACH = Way(
    "P2P/CUMEM, one visible GPU", "P2P/CUMEM", {"NCCL_P2P_READ_ENABLE": "0", "CUDA_VISIBLE_DEVICES": "{gpu}"}
)
# CUDA's older handles between processes.
IPC = Way("P2P/IPC", "P2P/IPC", {"NCCL_CUMEM_ENABLE": "0", "NCCL_P2P_READ_ENABLE": "0"})
# The receiver reads; NCCL's choice on A100 alone.
READ = Way("P2P/read", "P2P/CUMEM/read", {"NCCL_P2P_READ_ENABLE": "1"})
SHM = Way("SHM", "SHM", {"NCCL_P2P_DISABLE": "1"})
# What has another NCCL_HOSTID is another node, as a container of its own with one GPU would be.
NET = Way(
    "NET/Socket",
    "NET/Socket",
    {"NCCL_HOSTID": "pod-{rank}", "NCCL_MNNVL_ENABLE": "0", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"},
    apart=True,
)


def connected(ctx: Context) -> NcclLog:
    """Connects the ranks by a sum and a ring of messages, and returns what NCCL says of it."""
    dist.all_reduce(torch.ones(256, device=ctx.device))
    ring(ctx, sizes=[1024])(1024)()
    if ctx.device.type == "cuda":
        torch.cuda.synchronize()
    return ctx.nccl_log()


def over(way: Way) -> pytest.MarkDecorator:
    """The marker of a test whose ranks have this way alone, and keep the log that proves it."""
    return pytest.mark.ranks(2, 4, 8, device="cuda", largest=True, env=dict(way.environ), nccl_log=True)
