"""What a container, a cgroup or a login takes away: shared memory, pinned memory, cores, the identity of the host."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_gpuperf.features.doctor.facts import UNLIMITED, Facts
from pytest_gpuperf.features.doctor.finding import (
    Finding,
    make_critical,
    make_info,
    make_passed,
    make_unknown,
    make_warning,
)
from pytest_gpuperf.features.doctor.words import GIB, format_gpus, format_size

# NCCL's own shared memory: each channel of each pair of ranks takes its protocols' buffers, 4 MiB + 0.3 MiB by default
# (NCCL_BUFFSIZE), so 8 ranks with 2 channels each need about 32 of them on one host's 64 MiB of Docker: too little.
# NVIDIA's user guide advises --shm-size=1g and --ulimit memlock=-1 (Troubleshooting, Docker).
_ENOUGH_SHM = 1 * GIB
_LEAST_SHM_A_RANK = 32 * 2**20
_FEW_FILES = 4096
_CORES_A_GPU = 2  # one for the rank's own thread and one for NCCL's proxy


def check(facts: Facts) -> Iterator[Finding]:
    """All of the module."""
    yield from _check_shared_memory(facts)
    yield from _check_identity(facts)
    yield from _check_limits(facts)
    yield from _check_capabilities(facts)
    yield from _check_cores(facts)


def _check_shared_memory(facts: Facts) -> Iterator[Finding]:
    size, free = facts.isolation.shm_bytes, facts.isolation.shm_free_bytes
    ranks = max(1, len(facts.inspection.gpus))
    larger = "docker run --shm-size=8g, or an emptyDir volume of medium Memory at /dev/shm in a pod"
    if size is None:
        what = "the size of /dev/shm is unknown"
        yield make_unknown("shared memory", what, "NCCL and data loaders need it", "look at df /dev/shm")
        return
    if not size:
        yield make_critical(
            "shared memory",
            "/dev/shm is not there",
            "NCCL's shared memory and torch's data loaders need it",
            f"mount it: {larger}",
        )
        return
    smaller = min(size, size if free is None else free)
    # One rank alone shares nothing with others, but its data loaders do.
    if smaller < _LEAST_SHM_A_RANK * ranks and ranks > 1:
        yield make_critical(
            "shared memory",
            f"/dev/shm has {format_size(size)}, of which {format_size(smaller)} are free, for {ranks} GPUs",
            "NCCL fails with 'No space left on device' while it connects ranks, or a rank dies of a bus error",
            f"enlarge it: {larger}",
        )
    elif size < _ENOUGH_SHM:
        yield make_warning(
            "shared memory",
            f"/dev/shm has {format_size(size)}",
            "data loaders with workers die of a bus error when it is full",
            f"enlarge it: {larger}",
        )
    else:
        yield make_passed("shared memory", f"/dev/shm has {format_size(size)}, {format_size(smaller)} free")


def _check_identity(facts: Facts) -> Iterator[Finding]:
    system, isolation = facts.system, facts.isolation
    if "NCCL_HOSTID" in facts.settings:
        yield make_warning(
            "host identity",
            f"NCCL_HOSTID is {facts.settings['NCCL_HOSTID']!r}",
            "ranks with different values take one another for another host, and use the network on one machine",
            "unset it unless you mean to simulate several hosts",
        )
        return
    if not isolation.container:
        if system.hostname and system.boot_id:
            yield make_passed("host identity", f"NCCL takes this machine for host {system.hostname!r}")
        return
    namespace = {True: "the host's", False: "its own", None: "unknown"}[isolation.host_ipc]
    yield make_info(
        "host identity",
        f"NCCL takes this {_name_kind(facts)} for host {system.hostname or 'unknown'!r}, by host name and boot id; "
        f"its IPC namespace is {namespace}",
        "ranks in another pod have another host name: NCCL reaches them over the network, even on the same machine",
        "put all ranks of a machine into one pod with all its GPUs; hostIPC alone does not join pods, as host name and "
        "/dev/shm differ all the same",
    )
    hidden = (system.pci_gpus or 0) - len(facts.inspection.gpus)
    if hidden > 0 and facts.inspection.gpus:
        yield make_warning(
            "pod placement",
            f"this {_name_kind(facts)} has {len(facts.inspection.gpus)} of the machine's {system.pci_gpus} GPUs",
            "ranks that share the machine from other pods talk over the network in place of NVLink or PCIe",
            "for work on several GPUs use one pod with all of them",
        )


def _name_kind(facts: Facts) -> str:
    return "pod" if facts.isolation.container == "kubernetes" else "container"


def _check_limits(facts: Facts) -> Iterator[Finding]:
    limits = facts.isolation.limits
    if "memlock" in limits:
        soft, _ = limits["memlock"]
        ports = facts.network.ports
        if soft == UNLIMITED or "CAP_IPC_LOCK" in (facts.isolation.capabilities or ()):
            yield make_passed("memlock", "pinned memory is not limited")
        else:
            severity = make_critical if ports and soft < GIB else make_warning if ports else make_info
            yield severity(
                "memlock",
                f"memory that may be locked is limited to {format_size(soft)}, and CAP_IPC_LOCK is missing",
                "InfiniBand, RoCE and EFA register memory, and fail with 'Cannot allocate memory' at this limit",
                "docker run --ulimit memlock=-1 --cap-add IPC_LOCK; limits.conf or LimitMEMLOCK=infinity for a login",
            )
    if "nofile" in limits:
        soft, hard = limits["nofile"]
        if soft != UNLIMITED and soft < _FEW_FILES:
            yield make_warning(
                "open files",
                f"a process may open {soft} files (ulimit -n), and raise that to {hard if hard >= 0 else 'any number'}",
                "each rank holds sockets and shared memory for each peer: large worlds end with 'Too many open files'",
                "ulimit -n 65536",
            )
        else:
            yield make_passed(
                "open files", f"a process may open {'any number of' if soft == UNLIMITED else soft} files"
            )
    if limits.get("stack", (0, 0))[0] == UNLIMITED:
        yield make_info(
            "stack", "the stack is not limited", "NCCL's threads then take a stack of their library's default size"
        )


def _check_capabilities(facts: Facts) -> Iterator[Finding]:
    held = facts.isolation.capabilities
    if held is None or not facts.isolation.container:
        return
    if "CAP_SYS_NICE" not in held and len(facts.system.nodes) > 1:
        yield make_info(
            "capabilities",
            "the container has no CAP_SYS_NICE",
            "NUMA calls are refused: NCCL then takes /dev/shm for its buffers in place of cuMem host memory",
            "docker run --cap-add SYS_NICE",
        )


def _check_cores(facts: Facts) -> Iterator[Finding]:
    system, count = facts.system, len(facts.inspection.gpus)
    if not system.cores_allowed:
        yield make_unknown(
            "cores", "the cores of this process are unknown", "ranks may share a core", "look at taskset -p $$"
        )
        return
    cores = float(len(system.cores_allowed))
    quota = system.cpu_quota
    if quota is not None and quota < cores:
        cores = quota
    words = f"{cores:g} core{'' if cores == 1 else 's'}" + (" by the cgroup's quota" if cores == quota else "")
    if count and cores < _CORES_A_GPU * count:
        yield make_warning(
            "cores",
            f"this process may use {words} for {count} GPU{'' if count == 1 else 's'}",
            "ranks and NCCL's proxy threads wait for a core: small messages take as long as the scheduler does",
            f"give it at least {_CORES_A_GPU * count} cores: cpuset, resources.requests.cpu, --cpus",
        )
    else:
        yield make_passed(
            "cores", f"this process may use {words}" + (f" for {format_gpus(range(count))}" if count else "")
        )
    offline = (system.cores_online or 0) - len({core for cores_ in system.nodes.values() for core in cores_})
    if system.nodes and offline > 0:
        yield make_info("cores", f"{offline} online cores are on no NUMA node that the kernel lists")
