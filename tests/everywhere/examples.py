"""Environments as launchers make them, and settings of a run."""

from __future__ import annotations

from pathlib import Path

from pytest_gpuperf.features.everywhere.facts import NodeFacts
from pytest_gpuperf.features.everywhere.launcher import Place
from pytest_gpuperf.features.everywhere.settings import Settings

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[01-03],login",
    "SLURM_NODEID": "2",
    "SLURM_LOCALID": "0",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "OMPI_MCA_orte_hnp_uri": "2283536384.0;tcp://10.77.0.1:35207",
    "OMPI_MCA_orte_node_regex": "h[1:1-3]@0(3)",
    "OMPI_MCA_orte_precondition_transports": "e20a879913e6d819-e7531a7adaeff152",
    "PMIX_NAMESPACE": "2283536385",
    "PMIX_RANK": "1",
}
TORCHRUN = {
    "RANK": "9",
    "WORLD_SIZE": "16",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "8",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "a",
}
PET = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "8",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "job-node-0-0.job",
    "PET_MASTER_PORT": "29400",
}
PYTORCHJOB = {"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456", "RANK": "1", "WORLD_SIZE": "3"}
VERSIONS = {
    "Python": "3.11.7",
    "torch": "2.13.0",
    "numpy": "2.3.0",
    "cloudpickle": "3.1.1",
    "pytest-gpuperf": "0.1.0",
    "ray": "2.60.0",
    "NCCL": "2.29.3",
}


def settings(place: Place, *, port: int | None = None, wait: float = 20.0) -> Settings:
    """Return settings of a run."""
    return Settings(place, ("true",), wait=wait, silence=5.0, grace=1.0, port=port, home=Path("/nonexistent"))


def facts(host: str = "gpu1", address: str = "10.0.0.1", **changes: object) -> NodeFacts:
    """Return the facts of a node with which nothing is wrong."""
    told: dict[str, object] = {
        "host": host,
        "address": address,
        "versions": VERSIONS,
        "gpus": ("NVIDIA H200",) * 8,
        "shared_memory": 64 * 2**30,
        "cores": 64,
        "machine_cores": 64,
        "interface": "eth0",
        "mtu": 9001,
        "interfaces": ("lo", "eth0"),
        "wanted_interfaces": {},
        "own_name_is": (address,),
        "ray_address": "",
        **changes,
    }
    return NodeFacts(**told)  # type: ignore[arg-type]
