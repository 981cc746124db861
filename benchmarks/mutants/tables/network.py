"""Faults of the subject network."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

PROGRAMS = "suites.network.programs"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="a port that is down counts as usable",
        module=PROGRAMS,
        old='return self.state == "ACTIVE" and self.layer in LAYERS and self.rate > 0',
        new="return self.layer in LAYERS and self.rate > 0",
    ),
    Fault(
        name="NCCL may use any port of the adapter",
        module=PROGRAMS,
        old='"NCCL_IB_HCA": f"={self}"}',
        new='"NCCL_IB_HCA": self.device}',
    ),
    Fault(
        name="GPUs may reach each other without the port",
        module=PROGRAMS,
        old='only = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1",',
        new='only = {"NCCL_SHM_DISABLE": "1",',
    ),
    Fault(
        name="a rate in bits for one in bytes",
        module=PROGRAMS,
        old="float(number[1]) * 1e9 / 8",
        new="float(number[1]) * 1e9",
    ),
    Fault(
        name="every channel counts as GPUDirect",
        module=PROGRAMS,
        old='direct = sum("GDRDMA" in one.transport for one in self.log.connections)',
        new="direct = len(self.log.connections)",
    ),
)
