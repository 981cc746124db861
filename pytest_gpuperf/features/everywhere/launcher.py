"""Finds what the launcher of a job has told this process: which node it is, of how many, and which is the first."""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pytest_gpuperf.hardware.hostlist import parse_openmpi_names, parse_slurm_names


class LauncherError(Exception):
    """This process cannot find out its place in the job; the message says which variables were looked for."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a process in a job."""

    launcher: str
    """The launcher, in words."""
    job: str
    """Identity of the job, the same in all of its processes and in no other job of this launcher."""
    nodes: int
    """How many nodes the job has."""
    heads: tuple[str, ...]
    """Names or addresses of the first node, or of all nodes among which it is."""
    first: bool | None
    """Whether this process leads the first node; None if only the head's name shows it."""
    leads: bool
    """Whether this process is the one of its node that starts Ray there."""
    rank: int | None = None
    """Number of the node, or of the process, if the launcher gives one."""
    names: tuple[str, ...] = ()
    """Names of all nodes in the order of their numbers, if the launcher gives them."""
    key: str = ""
    """A secret that the launcher has given to the processes of this job only; empty if it gives none."""

    @property
    def digest(self) -> bytes:
        """A digest of the job's identity."""
        return hashlib.sha256(f"{self.job} {self.nodes}".encode()).digest()


@dataclass(frozen=True, slots=True)
class Launcher:
    """A launcher, and the variables by which it is known."""

    name: str
    mark: str
    """The variable that only this launcher sets."""
    needed: tuple[str, ...]
    read: Callable[[Mapping[str, str]], Place]


def find_place(environ: Mapping[str, str], *, head: str | None, nodes: int | None, rank: int | None) -> Place:
    """Return the place of this process; what the user gave comes before what the launcher gave.

    Args:
        environ: the environment of the process.
        head: name or address of the first node.
        nodes: how many nodes there are.
        rank: the number of this node.

    Raises:
        LauncherError: neither the environment nor the user says enough.
    """
    if rank is not None and nodes is not None and not 0 <= rank < nodes:
        raise LauncherError(f"--rank {rank}: expected a number from 0 to {nodes - 1}, because --nodes is {nodes}")
    if head is not None and nodes is not None:
        job = f"{head} {environ.get('SLURM_JOB_ID', '')}"
        return Place("--head", job, nodes, (head,), None if rank is None else rank == 0, leads=True, rank=rank)
    for launcher in LAUNCHERS:
        if launcher.mark in environ:
            return _read_place(_read(launcher, environ), head, nodes, rank)
    looked = "; ".join(f"{one.name}: {', '.join((one.mark, *one.needed))}" for one in LAUNCHERS)
    raise LauncherError(
        "no launcher has started this process: looked for the variables of "
        f"{looked}. Start it on every node, for example with `srun --ntasks-per-node=1`, or give --head HOST and "
        "--nodes N on every node"
    )


def _read_place(place: Place, head: str | None, nodes: int | None, rank: int | None) -> Place:
    if head is not None:
        place = replace(place, heads=(head,))
    if nodes is not None:
        place = replace(place, nodes=nodes)
    if rank is not None:
        place = replace(place, rank=rank, first=rank == 0 and place.leads)
    if not place.heads and place.nodes == 1:
        place = replace(place, heads=("127.0.0.1",))
    if not place.heads and place.first is not True:
        raise LauncherError(f"{place.launcher} does not say on which host rank 0 is: give --head HOST on every node")
    return place


def _read(launcher: Launcher, environ: Mapping[str, str]) -> Place:
    lacks = [name for name in launcher.needed if not environ.get(name)]
    if lacks:
        there = [name for name in (launcher.mark, *launcher.needed) if environ.get(name)]
        hint = ": start it with `srun --ntasks-per-node=1`" if launcher.mark == "SLURM_JOB_ID" else ""
        raise LauncherError(
            f"{launcher.name} has set {', '.join(there)} and not {', '.join(lacks)}, which this command needs{hint}, "
            "or give --head HOST and --nodes N on every node"
        )
    try:
        return launcher.read(environ)
    except ValueError as error:
        raise LauncherError(f"{launcher.name} has set a variable that cannot be read: {error}") from None


def _read_torchrun(environ: Mapping[str, str]) -> Place:
    world, local = int(environ["WORLD_SIZE"]), int(environ["LOCAL_WORLD_SIZE"])
    nodes = int(environ.get("GROUP_WORLD_SIZE") or world // local)
    rank = int(environ.get("GROUP_RANK") or int(environ["RANK"]) // local)
    job = " ".join(environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"))
    leads = int(environ["LOCAL_RANK"]) == 0
    return Place("torchrun", job, nodes, (environ["MASTER_ADDR"],), rank == 0 and leads, leads, rank)


def _read_openmpi(environ: Mapping[str, str]) -> Place:
    size, local = int(environ["OMPI_COMM_WORLD_SIZE"]), int(environ["OMPI_COMM_WORLD_LOCAL_SIZE"])
    rank = int(environ["OMPI_COMM_WORLD_RANK"])
    where = re.search(r"tcp6?://\[?([^,:;\]]+)", environ.get("OMPI_MCA_orte_hnp_uri", ""))
    # mpirun's own host comes first: usually it is the one of rank 0.
    heads = dict.fromkeys(
        [*([where[1]] if where else []), *parse_openmpi_names(environ.get("OMPI_MCA_orte_node_regex", ""))]
    )
    job = environ.get("PMIX_NAMESPACE", "")
    leads = int(environ["OMPI_COMM_WORLD_LOCAL_RANK"]) == 0
    key = environ.get("OMPI_MCA_orte_precondition_transports", "")
    node = rank if local == 1 else None  # with more processes a node, their order is the user's choice
    return Place("OpenMPI", job, -(-size // local), tuple(heads), rank == 0, leads, node, key=key)


def _read_hydra(environ: Mapping[str, str]) -> Place:
    size, local = int(environ["PMI_SIZE"]), int(environ["MPI_LOCALNRANKS"])
    rank = int(environ["PMI_RANK"])
    leads = int(environ["MPI_LOCALRANKID"]) == 0
    return Place("MPICH or Intel MPI", "hydra", -(-size // local), (), rank == 0, leads, rank if local == 1 else None)


def _read_slurm(environ: Mapping[str, str]) -> Place:
    names = parse_slurm_names(environ["SLURM_STEP_NODELIST"])
    job = f"{environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '')}"
    rank, leads = int(environ["SLURM_NODEID"]), int(environ["SLURM_LOCALID"]) == 0
    return Place(f"Slurm, step {job}", job, len(names), names[:1], rank == 0 and leads, leads, rank, names)


def _read_pmix(environ: Mapping[str, str]) -> Place:
    size, rank = int(environ.get("PMIX_SIZE") or 0), int(environ["PMIX_RANK"])
    if not size:
        raise LauncherError("PMIx does not say how many nodes there are: give --head HOST and --nodes N on every node")
    return Place("PMIx", environ["PMIX_NAMESPACE"], size, (), rank == 0, True, rank)


def _read_pet(environ: Mapping[str, str]) -> Place:
    nodes = environ["PET_NNODES"]
    if not nodes.isdecimal():
        raise LauncherError(f"PET_NNODES is {nodes!r}: expected one number, because nodes cannot join or leave a run")
    rank, head = int(environ["PET_NODE_RANK"]), environ["PET_MASTER_ADDR"]
    job = f"{head} {environ.get('PET_MASTER_PORT', '')} {environ.get('PET_RDZV_ID', '')}"
    return Place("the pod's PET_ variables", job, int(nodes), (head,), rank == 0, True, rank)


def _read_pytorchjob(environ: Mapping[str, str]) -> Place:
    # The operator of PyTorchJobs sets these for one process a pod; torchrun would add LOCAL_RANK.
    rank, head = int(environ["RANK"]), environ["MASTER_ADDR"]
    job = f"{head} {environ.get('MASTER_PORT', '')}"
    return Place("the pod's MASTER_ADDR", job, int(environ["WORLD_SIZE"]), (head,), rank == 0, True, rank)


LAUNCHERS = (  # the innermost first: torchrun may be started by Slurm
    Launcher("torchrun", "LOCAL_RANK", ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"), _read_torchrun),
    Launcher(
        "OpenMPI",
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        _read_openmpi,
    ),
    Launcher("MPICH or Intel MPI", "MPI_LOCALRANKID", ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"), _read_hydra),
    Launcher("Slurm", "SLURM_JOB_ID", ("SLURM_STEP_NODELIST", "SLURM_NODEID", "SLURM_LOCALID"), _read_slurm),
    Launcher("PMIx", "PMIX_RANK", ("PMIX_NAMESPACE",), _read_pmix),
    Launcher("Kubeflow", "PET_NNODES", ("PET_NODE_RANK", "PET_MASTER_ADDR"), _read_pet),
    Launcher("PyTorchJob", "MASTER_ADDR", ("RANK", "WORLD_SIZE"), _read_pytorchjob),
)
"""The launchers whose variables are known, the innermost first."""

OF_A_PROCESS = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|GROUP_NAME|MASTER_ADDR|MASTER_PORT"
    r"|(ROLE|TORCHELASTIC|PET|OMPI|PMIX|PMI)_.*|MPI_LOCAL.*|SLURM_(PROCID|LOCALID|NODEID|TASK_PID))"
)
"""Variables that a launcher sets for one process: neither Ray nor the command may take them for its own."""


def strip_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what the launcher has set for this one process."""
    return {name: value for name, value in environ.items() if not OF_A_PROCESS.fullmatch(name)}


def is_here(address: str) -> bool:
    """Whether an address is one of this machine's."""
    try:
        family, kind, number, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, number) as any_socket:
            any_socket.bind(where)
    except OSError:
        return False
    return True
