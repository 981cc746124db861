"""One fault at a time, put into a machine that is well: its finding, its severity, its words."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.features.doctor import checks
from pytest_gpuperf.features.doctor.diagnosis import CHECKS, diagnose
from pytest_gpuperf.features.doctor.facts import Facts
from tests.doctor.machines import machine

Change = Callable[[dict[str, Any]], object]


def gpu(index: int, **values: Any) -> Change:
    return lambda facts: facts["inspection"]["gpus"][index].update(values)


def gpu_of(facts: dict[str, Any], index: int) -> str:
    return str(facts["inspection"]["gpus"][index]["uuid"])


def every(**values: Any) -> Change:
    return lambda facts: [one.update(values) for one in facts["inspection"]["gpus"]]


def counted(index: int, name: str, count: int) -> Change:
    return lambda facts: facts["inspection"]["gpus"][index]["errors"].update({name: count})


def system(**values: Any) -> Change:
    return lambda facts: facts["system"].update(values)


def isolation(**values: Any) -> Change:
    return lambda facts: facts["isolation"].update(values)


def variables(**values: str) -> Change:
    return lambda facts: facts["variables"].update(values)


def software(**values: Any) -> Change:
    return lambda facts: facts["software"].update(values)


def port(index: int, **values: Any) -> Change:
    return lambda facts: facts["network"]["ports"][index].update(values)


def network(**values: Any) -> Change:
    return lambda facts: facts["network"].update(values)


def links(index: int, active: int) -> Change:
    def change(facts: dict[str, Any]) -> None:
        for link in facts["inspection"]["gpus"][index]["links"][active:]:
            link.update(active=False, end="")

    return change


def pairs(**p2p: str) -> Change:
    return lambda facts: [pair.update(p2p=p2p) for pair in facts["inspection"]["pairs"]]


def both(*changes: Change) -> Change:
    return lambda facts: [change(facts) for change in changes]


def inspection(**values: Any) -> Change:
    return lambda facts: facts["inspection"].update(values)


FULL = {"corrected": 3, "uncorrected": 1, "pending": False, "failed": True}
PENDING = FULL | {"failed": False, "pending": True}
PCIE = {"generation": 5, "lanes": 16, "generation_of_slot": 5, "generation_of_gpu": 5, "lanes_of_gpu": 16}
EFA = [{"device": "rdmap0", "port": 1, "driver": "efa", "state": "ACTIVE"}]
IN_POD = isolation(container="kubernetes")

FAULTS: list[tuple[str, Change, str, str, str]] = [
    # driver
    ("dgx-h100", inspection(problem="NVML did not start"), "critical", "driver", "NVML did not start"),
    (
        "dgx-h100",
        inspection(gpus=[], pairs=[]),
        "critical",
        "driver",
        "8 NVIDIA GPUs are on the PCI bus, and no driver",
    ),
    ("dgx-h100", both(inspection(gpus=[], pairs=[]), IN_POD), "info", "driver", "this container sees no GPU"),
    ("dgx-h100", both(inspection(gpus=[], pairs=[]), system(pci_gpus=0)), "info", "driver", "has no NVIDIA GPU"),
    ("dgx-h100", system(pci_gpus=9), "critical", "gpu count", "1 of the 9 GPUs on the PCI bus are not shown"),
    ("dgx-h100", gpu(3, problem="GPU is lost"), "critical", "gpu answers", "GPU 3 does not answer: GPU is lost"),
    ("dgx-h100", gpu(3, recovery="reset"), "critical", "gpu recovery", "a recovery of GPU 3: reset"),
    ("dgx-h100", gpu(3, recovery=""), "unknown", "gpu recovery", "GPU 3: the driver does not report"),
    ("dgx-h100", gpu(3, name="NVIDIA L4"), "warning", "gpu kinds", "different GPUs: NVIDIA H100 80GB HBM3, NVIDIA L4"),
    ("dgx-h100", both(gpu(0, vbios="96.1"), gpu(1, vbios="96.2")), "warning", "vbios", "VBIOS versions: 96.1, 96.2"),
    # memory
    ("dgx-h100", gpu(2, ecc=False, ecc_pending=False), "warning", "ecc", "GPU 2: ECC is off"),
    ("dgx-h100", gpu(2, ecc_pending=False), "warning", "ecc", "GPU 2: ECC changes with the next reset"),
    ("dgx-h100", gpu(2, rows=FULL), "critical", "row remapping", "GPU 2: a memory row failed and no spare row"),
    ("dgx-h100", gpu(2, rows=PENDING), "critical", "row remapping", "GPU 2: a memory row waits for its replacement"),
    ("dgx-1v", gpu(2, pages_pending=True), "critical", "row remapping", "GPU 2: a memory row waits"),
    ("dgx-h100", counted(5, "ECC uncorrected", 2), "critical", "memory errors", "GPU 5: 2 uncorrected memory errors"),
    ("dgx-h100", counted(5, "ECC corrected", 2), "info", "memory errors", "GPU 5: corrected memory errors"),
    ("dgx-h100", gpu(5, lifetime_uncorrected=2), "info", "memory errors", "earlier in the GPU's life"),
    ("dgx-h100", gpu(5, errors={}), "unknown", "memory errors", "GPU 5: ECC is on and its counts cannot be read"),
    # modes
    ("dgx-h100", gpu(1, mig=True, mig_slices=2), "critical", "mig", "GPU 1: split into MIG slices (2 in all)"),
    (
        "dgx-h100",
        every(persistence=False),
        "warning",
        "persistence",
        "GPUs 0, 1, 2, 3, 4, 5, 6, 7: persistence mode is",
    ),
    ("dgx-h100", gpu(1, power_limit_watts=500.0), "warning", "power limit", "limit is 500 W, the default is 700 W"),
    (
        "dgx-h100",
        gpu(1, power_limit_watts=650.0, power_default_watts=650.0),
        "warning",
        "power limit",
        "equal GPUs have different power limits: 700 W, 650 W",
    ),
    ("dgx-h100", every(power_limit_watts=None), "unknown", "power limit", "no GPU reports its power limit"),
    (
        "dgx-h100",
        gpu(1, sm_set_hertz=1.2e9),
        "info",
        "clocks",
        "the application clock is 1200 MHz, the fastest 1980 MHz",
    ),
    (
        "dgx-h100",
        gpu(1, memory_hertz=1e9, memory_most_hertz=2.6e9, slowdowns=[]),
        "warning",
        "clocks",
        "GPU 1: the memory clock is below its maximum",
    ),
    ("dgx-h100", gpu(1, compute_mode="prohibited"), "critical", "compute mode", "prohibits CUDA contexts"),
    ("dgx-h100", gpu(1, compute_mode="exclusive process"), "warning", "compute mode", "admits one process"),
    ("dgx-h100", gpu(6, slowdowns=["power brake"]), "critical", "throttling", "GPU 6: clocks are held back now: power"),
    ("dgx-h100", every(slowdowns=None), "unknown", "throttling", "no GPU reports why its clocks are held back"),
    ("dgx-h100", gpu(6, slowdowns=["power cap"]), "info", "throttling", "GPU 6: at the power limit now"),
    ("dgx-h100", gpu(6, kelvin=358.15), "warning", "temperature", "GPU 6: 85 °C, about to slow down"),
    # links
    ("dgx-h100", links(4, 17), "critical", "nvlink", "GPU 4: 17 NVLinks are active, 18 on the others"),
    (
        "dgx-h100",
        both(*(links(index, 17) for index in range(8))),
        "warning",
        "nvlink",
        "1 NVLinks are inactive on a machine with NVSwitch",
    ),
    (
        "dgx-h100",
        both(*(links(index, 0) for index in range(8))),
        "warning",
        "nvlink",
        "the GPUs have NVLinks and none is active",
    ),
    ("a100-pcie", both(links(0, 0), links(1, 0)), "info", "nvlink", "GPUs 0, 1: fewer NVLinks than other GPUs"),
    (
        "dgx-h100",
        counted(4, "NVLink recoveries", 1),
        "warning",
        "nvlink errors",
        "GPU 4: NVLinks were lost and recovered",
    ),
    ("dgx-h100", counted(4, "NVLink replays", 7), "info", "nvlink errors", "GPU 4: 7 NVLink replays"),
    ("dgx-h100", every(errors={}), "unknown", "nvlink errors", "NVLink's error counts cannot be read"),
    ("dgx-h100", gpu(4, fabric="in progress"), "critical", "fabric", "GPU 4: registration with the NVLink fabric: in"),
    ("dgx-h100", pairs(), "unknown", "p2p", "does not report whether GPUs reach one another"),
    (
        "dgx-h100",
        pairs(read="not supported"),
        "critical",
        "p2p",
        "28 of 28 pairs of GPUs have no direct access (0-1, 0-2",
    ),
    (
        "l4-phb",
        pairs(read="a registry key disables it"),
        "warning",
        "p2p",
        "6 of 6 pairs of GPUs have no direct access",
    ),
    (
        "l4-phb",
        pairs(read="not supported"),
        "info",
        "p2p",
        "no direct access (0-1, 0-2, 0-3, 1-2, 1-3, 2-3): not supported",
    ),
    # pcie
    ("dgx-h100", gpu(7, pcie=PCIE | {"lanes": 8}), "warning", "pcie width", "GPU 7: PCIe has x8 of x16 lanes"),
    ("dgx-h100", every(pcie={}), "unknown", "pcie width", "no GPU reports its PCIe link"),
    (
        "dgx-h100",
        gpu(7, pcie=PCIE | {"generation_of_slot": 4}),
        "warning",
        "pcie generation",
        "slot allows PCIe generation 4",
    ),
    (
        "dgx-h100",
        gpu(7, pcie=PCIE | {"generation": 3}, slowdowns=[]),
        "warning",
        "pcie generation",
        "GPU 7: PCIe runs at generation 3 of 5 on a GPU that works",
    ),
    ("dgx-h100", counted(7, "PCIe replays", 5000), "warning", "pcie replays", "GPU 7: 5000 PCIe replays"),
    ("dgx-h100", counted(7, "PCIe replays", 5), "info", "pcie replays", "GPU 7: 5 PCIe replays"),
    (
        "dgx-h100",
        system(cores_allowed=[0, 1, 2]),
        "warning",
        "affinity",
        "none of the cores 0-2 that this process may use",
    ),
    ("dgx-h100", every(cores=[]), "unknown", "affinity", "does not report which cores are near which GPU"),
    (
        "dgx-h100",
        every(cores=[0, 1]),
        "info",
        "affinity",
        "all GPUs report the same cores on a machine of 2 NUMA nodes",
    ),
    # activity
    (
        "dgx-h100",
        gpu(0, processes=[4711]),
        "warning",
        "foreign processes",
        "GPU 0: other processes compute on them: 4711",
    ),
    (
        "dgx-h100",
        both(gpu(0, processes=[4711]), lambda facts: facts.update(processes=[{"pid": 4711, "command": "python"}])),
        "warning",
        "foreign processes",
        "4711 python",
    ),
    ("dgx-h100", gpu(0, used_bytes=50 * 2**30), "warning", "foreign memory", "GPU 0: 50 GiB in use, and no process"),
    (
        "dgx-h100",
        both(
            gpu(1, processes=[4711], busy=0.98), lambda facts: facts.update(processes=[{"pid": 4711, "command": "p"}])
        ),
        "warning",
        "foreign load",
        "GPU 1: kernels run 98% of the time by 4711 p, and none is of this process",
    ),
    (
        "dgx-h100",
        lambda facts: facts.update(pcie_traffic={facts["inspection"]["gpus"][2]["uuid"]: 54e9}),
        "warning",
        "pcie traffic",
        "GPU 2: 54 GB/s cross its PCIe link, and none is of this process",
    ),
    ("dgx-h100", every(processes=None), "unknown", "foreign processes", "does not list the processes of the GPUs"),
    # variables
    (
        "dgx-h100",
        variables(NCCL_P2P_DISABLE="1"),
        "critical",
        "variables",
        "NCCL_P2P_DISABLE=1: direct access between GPUs",
    ),
    (
        "dgx-h100",
        variables(NCCL_MAX_NCHANNELS="12"),
        "warning",
        "variables",
        "NCCL_MAX_NCHANNELS=12: NCCL uses no more",
    ),
    ("rtx4090", variables(NCCL_P2P_DISABLE="1"), "warning", "variables", "NCCL_P2P_DISABLE=1"),
    ("dgx-h100", variables(NCCL_P2P_DISABEL="1"), "warning", "variable names", "nearest real name is NCCL_P2P_DISABLE"),
    (
        "dgx-h100",
        variables(NCCL_WHATEVER_ELSE_IS="1"),
        "warning",
        "variable names",
        "nothing reads NCCL_WHATEVER_ELSE_IS",
    ),
    ("dgx-h100", variables(NCCL_MIN_NRINGS="8"), "warning", "variable names", "NCCL_MIN_NRINGS is an old name"),
    ("dgx-h100", variables(CUDA_VISIBLE_DEVICE="1"), "warning", "variable names", "real name is CUDA_VISIBLE_DEVICES"),
    ("dgx-h100", variables(CUDA_VISIBLE_DEVICES="0,9"), "critical", "variables", "names GPU 9, and the machine has 8"),
    ("dgx-h100", variables(CUDA_VISIBLE_DEVICES="-1"), "warning", "variables", "hides all GPUs"),
    (
        "dgx-h100",
        both(variables(CUDA_VISIBLE_DEVICES="0,1"), gpu(3, name="NVIDIA L4")),
        "warning",
        "variables",
        "CUDA_DEVICE_ORDER is not PCI_BUS_ID",
    ),
    ("dgx-h100", variables(NCCL_DEBUG="INFO"), "info", "variables", "NCCL_DEBUG=INFO: NCCL logs to standard output"),
    (
        "dgx-h100",
        lambda facts: facts.update(configured={"/etc/nccl.conf": {"NCCL_ALGO": "Tree"}}),
        "warning",
        "variables",
        "NCCL_ALGO=Tree (in /etc/nccl.conf)",
    ),
    (
        "dgx-h100",
        lambda facts: facts.update(unreadable={"/etc/nccl.conf": "it is no regular file"}),
        "unknown",
        "variables",
        "NCCL's configuration file /etc/nccl.conf cannot be read: it is no regular file",
    ),
    # software
    ("dgx-h100", software(packages={}), "info", "torch", "torch is not installed in this Python"),
    ("dgx-h100", software(torch_cuda=""), "critical", "torch", "torch 2.11.0 is a build without CUDA"),
    ("dgx-h100", software(torch_cuda=None), "info", "torch", "the CUDA that it was built for is unknown"),
    ("dgx-h100", inspection(driver="550.54"), "critical", "driver version", "driver 550.54 is older than 580"),
    ("gb200-nvl72", software(torch_cuda="12.6"), "critical", "cuda architecture", "capability 10.0 need 12.8"),
    (
        "dgx-1v",
        software(torch_cuda="13.0"),
        "critical",
        "cuda architecture",
        "has no code for GPUs of compute capability 7.0",
    ),
    (
        "dgx-h100",
        software(packages={"torch": "2.11.0", "nvidia-nccl-cu13": "2.30.7"}),
        "warning",
        "library versions",
        "nvidia-nccl-cu13 2.30.7 (torch was built with 2.28.9)",
    ),
    (
        "dgx-h100",
        software(packages={"torch": "2.11.0", "nvidia-nccl-cu13": "2.28.9", "nvidia-nccl-cu12": "2.27.3"}),
        "warning",
        "libraries twice",
        "nvidia-nccl-cu13 2.28.9, nvidia-nccl-cu12 2.27.3 are installed side by side",
    ),
    # isolation
    ("dgx-h100", isolation(shm_bytes=0), "critical", "shared memory", "/dev/shm is not there"),
    ("dgx-h100", isolation(shm_bytes=None), "unknown", "shared memory", "the size of /dev/shm is unknown"),
    (
        "dgx-h100",
        isolation(shm_bytes=64 * 2**20, shm_free_bytes=60 * 2**20),
        "critical",
        "shared memory",
        "/dev/shm has 64 MiB, of which 60 MiB are free, for 8 GPUs",
    ),
    ("dgx-h100", variables(NCCL_HOSTID="a"), "warning", "host identity", "NCCL_HOSTID is 'a'"),
    (
        "pod-one-gpu",
        isolation(),
        "info",
        "host identity",
        "NCCL takes this pod for host 'train-0', by host name and boot id",
    ),
    ("pod-one-gpu", isolation(), "warning", "pod placement", "this pod has 1 of the machine's 8 GPUs"),
    ("pod-one-gpu", network(ports=[]), "info", "memlock", "memory that may be locked is limited to 64 KiB"),
    ("dgx-h100", isolation(limits={"nofile": [1024, -1]}), "warning", "open files", "may open 1024 files"),
    ("dgx-h100", isolation(limits={"stack": [-1, -1]}), "info", "stack", "the stack is not limited"),
    ("pod-one-gpu", isolation(), "info", "capabilities", "the container has no CAP_SYS_NICE"),
    ("dgx-h100", system(cores_allowed=[]), "unknown", "cores", "the cores of this process are unknown"),
    ("pod-one-gpu", isolation(), "warning", "cores", "may use 1 core by the cgroup's quota for 1 GPU"),
    # host
    ("dgx-h100", system(xids=[["0000:1b:00", 79]]), "critical", "xid", "Xid 79 on 0000:1b:00, 1 times"),
    ("dgx-h100", system(xids=[["0000:1b:00", 94]]), "warning", "xid", "a contained memory error ended a program"),
    ("dgx-h100", system(xids=[["0000:1b:00", 999]]), "warning", "xid", "see NVIDIA's XID error catalogue"),
    ("dgx-h100", system(xids=[["0000:1b:00", 31]]), "info", "xid", "1 Xids of programs' own faults"),
    ("dgx-h100", system(xids=None), "unknown", "xid", "the kernel's log is closed"),
    ("dgx-h100", system(iommu_translates=True), "warning", "iommu", "the IOMMU translates the addresses of devices"),
    (
        "dgx-h100",
        system(iommu_translates=None, iommu_options=["iommu=pt"]),
        "unknown",
        "iommu",
        "does not show its IOMMU groups here (it was started with iommu=pt)",
    ),
    ("dgx-h100", system(governors=["powersave"]), "warning", "governor", "frequency governor is powersave"),
    ("dgx-h100", system(governors=["schedutil"]), "info", "governor", "frequency governor is schedutil"),
    ("dgx-h100", system(numa_balancing=True), "info", "numa balancing", "the kernel moves pages between NUMA nodes"),
    ("dgx-h100", system(memory_bytes=2**36), "info", "host memory", "the host has 64 GiB for 637.2 GiB on GPUs"),
    ("dgx-h100", system(modules=["nouveau"]), "critical", "nouveau", "the module nouveau is loaded"),
    # network
    (
        "dgx-h100",
        port(2, state="DOWN", physical="Polling"),
        "warning",
        "rdma ports",
        "1 of 8 RDMA ports are not active: mlx5_2",
    ),
    ("dgx-h100", port(2, gbit=100.0), "warning", "rdma rates", "mlx5_2:1 100 Gbit/s; the fastest have 400 Gbit/s"),
    ("dgx-h100", port(2, layer="Ethernet"), "info", "rdma layers", "active ports are of Ethernet, InfiniBand"),
    ("dgx-h100", port(2, errors={"symbol_error": 9}), "warning", "rdma errors", "mlx5_2:1: symbol_error 9"),
    ("dgx-h100", network(ports=EFA), "warning", "efa plugin", "1 EFA devices, and no libnccl-net.so"),
    ("dgx-h100", system(modules=["nvidia"]), "info", "gpudirect rdma", "nvidia_peermem is not loaded"),
    ("dgx-h100", system(modules=None), "unknown", "gpudirect rdma", "the loaded kernel modules cannot be listed"),
    ("dgx-h100", network(ports=[]), "info", "rdma", "no InfiniBand, RoCE or EFA device"),
    (
        "dgx-h100",
        variables(NCCL_SOCKET_IFNAME="=ens5"),
        "warning",
        "interfaces",
        "NCCL_SOCKET_IFNAME is '=ens5', and this machine has lo, eno1",
    ),
    (
        "dgx-h100",
        network(interfaces=[{"name": name, "up": True, "physical": True} for name in ("eno1", "eno2")]),
        "info",
        "interfaces",
        "eno1, eno2 are up",
    ),
]


@pytest.mark.parametrize(
    ("name", "change", "severity", "check", "words"), FAULTS, ids=[f"{fault[3]}: {fault[4]}" for fault in FAULTS]
)
def test_a_fault_is_found(name: str, change: Change, severity: str, check: str, words: str) -> None:
    found = [(one.severity.value, one.check, one.what) for one in diagnose(machine(name, change))]
    assert any((severity, check) == (a, b) and words in what for a, b, what in found), found


def test_the_machines_of_the_faults_have_none_of_them_before() -> None:
    for name, change, severity, check, words in FAULTS:
        if change.__qualname__.startswith("isolation") and machine(name) == machine(name, change):
            continue  # a fault that the machine has as it is
        assert not any(
            (severity, check) == (one.severity.value, one.check) and words in one.what
            for one in diagnose(machine(name))
        ), (name, check, words)


def test_our_own_processes_are_not_foreign() -> None:
    ours = [{"pid": 4711, "command": "python", "ours": True}]
    change = both(gpu(0, processes=[4711]), lambda facts: facts.update(processes=ours))
    assert not [one for one in diagnose(machine("dgx-h100", change)) if one.check == "foreign processes" and one.action]
    busy = both(change, gpu(0, busy=1.0), lambda facts: facts.update(pcie_traffic={gpu_of(facts, 0): 54e9}))
    assert not {"foreign load", "pcie traffic"} & {one.check for one in diagnose(machine("dgx-h100", busy))}


def test_copies_that_keep_a_gpu_busy_are_no_kernels() -> None:
    change = both(gpu(0, busy=1.0), lambda facts: facts.update(pcie_traffic={gpu_of(facts, 0): 115e9}))
    found = {one.check for one in diagnose(machine("dgx-h100", change))}
    assert "pcie traffic" in found
    assert "foreign load" not in found


@pytest.mark.parametrize(("busy", "traffic"), [(0.1, 0.9e9), (None, 0.0)])
def test_a_display_and_an_idle_driver_are_no_load(busy: float | None, traffic: float) -> None:
    change = both(gpu(0, busy=busy), lambda facts: facts.update(pcie_traffic={gpu_of(facts, 0): traffic}))
    assert not {"foreign load", "pcie traffic"} & {one.check for one in diagnose(machine("dgx-h100", change))}


def test_memory_that_is_locked_by_right_needs_no_limit() -> None:
    change = isolation(limits={"memlock": [65536, 65536]}, capabilities=["CAP_IPC_LOCK"])
    found = [one for one in diagnose(machine("dgx-h100", change)) if one.check == "memlock"]
    assert [one.severity.value for one in found] == ["pass"]


def test_nothing_known_is_no_error_and_no_fault() -> None:
    findings = diagnose(Facts())
    assert {one.severity.value for one in findings} <= {"info", "unknown", "pass"}


def test_every_module_of_checks_is_asked() -> None:
    modules = {inspect.getmodule(check).__name__ for check in CHECKS}  # type: ignore[union-attr]
    folder = Path(checks.__path__[0])
    assert modules == {f"{checks.__name__}.{path.stem}" for path in folder.glob("[!_]*.py")}
