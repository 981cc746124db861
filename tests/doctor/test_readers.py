"""The readers, on trees of /proc and /sys that a test wrote, and on this machine."""

import errno
import os
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from pytest_gpuperf.baselines.plain import make_plain, read
from pytest_gpuperf.features.doctor.facts import Facts, InterfaceFacts, ProcessFacts, RdmaPort
from pytest_gpuperf.features.doctor.gather import gather
from pytest_gpuperf.features.doctor.readers.isolation import detect_container, read_isolation
from pytest_gpuperf.features.doctor.readers.network import read_network
from pytest_gpuperf.features.doctor.readers.processes import read_processes
from pytest_gpuperf.features.doctor.readers.software import find_cuda, read_software
from pytest_gpuperf.features.doctor.readers.system import read_system, read_xids
from pytest_gpuperf.features.doctor.readers.text import spell
from pytest_gpuperf.features.doctor.readers.variables import read_configured, read_unreadable, read_variables
from tests.hardware.fake_devices import FakeDevices


def tree(root: Path, **files: str) -> Path:
    """Writes files; __ in a name stands for /."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_lists_of_cores() -> None:
    assert spell((0, 1, 2, 3, 8, 10, 11)) == "0-3,8,10-11"
    assert spell(()) == ""


def test_the_system(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        proc__sys__kernel__hostname="node17\n",
        proc__sys__kernel__random__boot_id="0c6a\n",
        proc__sys__kernel__osrelease="5.15.0\n",
        proc__sys__kernel__numa_balancing="1\n",
        proc__cmdline="BOOT_IMAGE=/vmlinuz secret=1 intel_iommu=on iommu=pt\n",
        proc__meminfo="MemTotal:       1024 kB\nMemAvailable:    512 kB\nHugePages_Total:       0\n",
        proc__modules="nvidia_peermem 16384 0 - Live 0x0\nnvidia 56000 1 - Live 0x0\next4 1 1 - Live 0x0\n",
        sys__devices__system__cpu__online="0-3\n",
        sys__devices__system__node__node0__cpulist="0-1\n",
        sys__devices__system__node__node1__cpulist="2-3\n",
        sys__devices__system__node__has_cpu="0-1\n",
        sys__devices__system__cpu__cpufreq__policy0__scaling_governor="powersave\n",
        sys__fs__cgroup__cpu_max="",
        sys__kernel__iommu_groups__0__type="identity\n",
    )
    tree(root / "sys/fs/cgroup", **{"cpu.max": "150000 100000\n"})
    for name, vendor, kind in (("a", "0x10de", "0x030200"), ("b", "0x10de", "0x068000"), ("c", "0x8086", "0x030000")):
        tree(root / f"sys/bus/pci/devices/{name}", vendor=vendor, **{"class": kind})
    seen = read_system(root, (0, 2))
    assert (seen.hostname, seen.boot_id, seen.kernel) == ("node17", "0c6a", "5.15.0")
    assert seen.iommu_options == ("intel_iommu=on", "iommu=pt")
    assert (seen.cores_online, seen.cores_allowed, seen.cpu_quota) == (4, (0, 2), 1.5)
    assert seen.nodes == {"0": (0, 1), "1": (2, 3)}
    assert (seen.governors, seen.numa_balancing, seen.iommu_translates) == (("powersave",), True, False)
    assert (seen.memory_bytes, seen.memory_free_bytes) == (2**20, 2**19)
    assert seen.modules == ("nvidia", "nvidia_peermem")
    assert seen.pci_gpus == 1
    assert seen.xids is None


def test_an_iommu_that_translates_and_a_quota_of_the_first_cgroups(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        sys__kernel__iommu_groups__0__type="DMA-FQ\n",
        sys__fs__cgroup__cpu__cpu_cfs="",
    )
    tree(root / "sys/fs/cgroup/cpu", **{"cpu.cfs_quota_us": "200000\n", "cpu.cfs_period_us": "100000\n"})
    seen = read_system(root, ())
    assert (seen.iommu_translates, seen.cpu_quota) == (True, 2.0)


def test_an_empty_tree_leaves_all_unknown(tmp_path: Path) -> None:
    seen = read_system(tmp_path, (0,))
    assert (seen.hostname, seen.cores_online, seen.pci_gpus, seen.modules, seen.iommu_translates) == (
        "",
        None,
        None,
        None,
        None,
    )
    assert read_network(tmp_path, {}).ports == ()


def test_xids_in_the_kernels_log(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(
        "6,1,1,-;NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', GPU has fallen off the bus.\n6,2,2,-;eth0: link up\n"
        "6,3,3,-;NVRM: Xid (PCI:0000:1b:00): 31, pid=4711, name=python, Ch 00000010\n"
    )
    assert read_xids(log) == (("0000:1b:00", 79), ("0000:1b:00", 31))
    assert read_xids(tmp_path / "none") is None


def test_isolation(tmp_path: Path) -> None:
    root = tree(tmp_path, proc__self__status="Name:\tx\nCapEff:\t0000000000804000\n", dev__shm__x="")
    (root / "proc/self/ns").mkdir()
    os.symlink("ipc:[4026531839]", root / "proc/self/ns/ipc")
    os.symlink("pid:[4026532000]", root / "proc/self/ns/pid")
    seen = read_isolation(root, {})
    assert (seen.host_ipc, seen.host_pid) == (True, False)
    assert seen.capabilities == ("CAP_IPC_LOCK", "CAP_SYS_NICE")
    assert seen.shm_bytes
    assert set(seen.limits) == {"memlock", "nofile", "nproc", "stack", "core"}


def test_no_shared_memory_is_not_an_unknown_one(tmp_path: Path) -> None:
    assert read_isolation(tmp_path, {}).shm_bytes == 0


@pytest.mark.parametrize(
    ("files", "environ", "kind"),
    [
        ({}, {}, ""),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({}, {"APPTAINER_CONTAINER": "x.sif"}, "apptainer"),
        ({"run__.containerenv": ""}, {}, "podman"),
        ({".dockerenv": ""}, {}, "docker"),
        ({"proc__1__cgroup": "0::/kubepods/burstable/pod1"}, {}, "kubernetes"),
        ({"proc__1__cgroup": "0::/system.slice/containerd.service"}, {}, "container"),
    ],
)
def test_kinds_of_containers(tmp_path: Path, files: dict[str, str], environ: dict[str, str], kind: str) -> None:
    assert detect_container(tree(tmp_path, **files), environ) == kind


def test_the_network(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        sys__class__infiniband__mlx5_0__ports__1__state="4: ACTIVE\n",
        sys__class__infiniband__mlx5_0__ports__1__phys_state="5: LinkUp\n",
        sys__class__infiniband__mlx5_0__ports__1__link_layer="InfiniBand\n",
        sys__class__infiniband__mlx5_0__ports__1__rate="400 Gb/sec (4X NDR)\n",
        sys__class__infiniband__mlx5_0__ports__1__counters__symbol_error="9\n",
        sys__class__infiniband__mlx5_0__ports__1__counters__link_downed="0\n",
        sys__class__infiniband__mlx5_0__device__numa_node="1\n",
        sys__class__net__eth0__operstate="up\n",
        sys__class__net__eth0__mtu="9001\n",
        sys__class__net__eth0__speed="-1\n",
        sys__class__net__eth0__device__x="",
        sys__class__net__lo__operstate="unknown\n",
        sys__class__net__docker0__operstate="down\n",
        opt__ofi__lib__x="",
    )
    os.symlink("../../drivers/mlx5_core", root / "sys/class/infiniband/mlx5_0/device/driver")
    (root / "opt/ofi/lib/libnccl-net.so").touch()
    seen = read_network(root, {"LD_LIBRARY_PATH": ":/opt/ofi/lib"})
    assert seen.ports == (
        RdmaPort("mlx5_0", 1, "mlx5_core", "ACTIVE", "LinkUp", "InfiniBand", 400.0, 1, {"symbol_error": 9}),
    )
    assert seen.interfaces == (InterfaceFacts("docker0", up=False), InterfaceFacts("eth0", True, 9001, None, True))
    assert seen.plugins == ("libnccl-net.so",)


def test_software_without_importing_it(tmp_path: Path) -> None:
    (tmp_path / "version.py").write_text("__version__ = '2.11.0'\ncuda: Optional[str] = '13.0'\n")
    versions = {"torch": "2.11.0", "nvidia-nccl-cu13": "2.30.7"}

    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    seen = read_software(
        version,
        lambda name: ["nvidia-nccl-cu13==2.28.9; platform_system == 'Linux'", "sympy>=1.13", "triton==3.6.0"],
        lambda: tmp_path / "version.py",
    )
    assert seen.packages == versions
    assert (seen.torch_cuda, seen.required) == ("13.0", {"nvidia-nccl-cu13": "2.28.9", "triton": "3.6.0"})


@pytest.mark.parametrize(
    ("source", "version", "cuda"),
    [
        ("cuda = '12.8'\n", "2.11.0", "12.8"),
        ("cuda: Optional[str] = None\n", "2.13.0+cpu", ""),
        (None, "2.11.0+cu130", "13.0"),
        (None, "2.11.0+cu126", "12.6"),
        (None, "2.11.0+cpu", ""),
        (None, "2.11.0", None),
        ("nothing of it\n", "2.11.0a0+git1", None),
    ],
)
def test_the_cuda_of_a_build_of_torch(source: str | None, version: str, cuda: str | None) -> None:
    assert find_cuda(source, version) == cuda


def test_no_variable_but_those_of_gpus_is_read() -> None:
    environ = {"NCCL_DEBUG": "INFO", "AWS_SECRET_ACCESS_KEY": "x", "CUDA_HOME": "/c", "TORCH_NCCL_NAN_CHECK": "1"}
    assert set(read_variables(environ)) == {"NCCL_DEBUG", "CUDA_HOME", "TORCH_NCCL_NAN_CHECK"}


def test_nccls_files(tmp_path: Path) -> None:
    root = tree(tmp_path, etc__x="", root__x="")
    (root / "etc/nccl.conf").write_text("# NCCL_DEBUG=INFO\nNCCL_ALGO=Tree\nNCCL_SOCKET_IFNAME==eth0\n\n")
    (root / "root/.nccl.conf").write_text("NCCL_ALGO=Ring\n")
    found = read_configured(root, {"HOME": "/root"})
    assert found == {
        "/etc/nccl.conf": {"NCCL_ALGO": "Tree", "NCCL_SOCKET_IFNAME": "=eth0"},
        "/root/.nccl.conf": {"NCCL_ALGO": "Ring"},
    }
    facts = Facts(configured=found, variables={"NCCL_DEBUG": "WARN"})
    assert facts.settings == {"NCCL_ALGO": "Ring", "NCCL_SOCKET_IFNAME": "=eth0", "NCCL_DEBUG": "WARN"}
    (root / "conf").write_text("NCCL_PROTO=LL\n")
    assert list(read_configured(root, {"HOME": "/root", "NCCL_CONF_FILE": "/conf"})) == ["/etc/nccl.conf", "/conf"]


def test_a_file_of_nccls_that_might_never_end_is_not_read(tmp_path: Path) -> None:
    root = tree(tmp_path, etc__x="", root__x="")
    os.mkfifo(root / "etc/nccl.conf")
    (root / "root/.nccl.conf").write_text("NCCL_ALGO=Ring\n" * 100_000)
    environ = {"HOME": "/root"}
    assert read_configured(root, environ) == {}
    assert read_unreadable(root, environ) == {
        "/etc/nccl.conf": "it is no regular file",
        "/root/.nccl.conf": "it holds more than 1 MiB",
    }
    (root / "conf").symlink_to(root / "conf")
    assert read_unreadable(root, {"NCCL_CONF_FILE": "/conf"})["/conf"] == os.strerror(errno.ELOOP)
    assert list(read_unreadable(root, {"NCCL_CONF_FILE": "/a\0b"})) == ["/etc/nccl.conf", "/a\0b"]
    assert read_unreadable(root / "root", environ) == {}


def test_whose_processes_are(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        proc__10__comm="pytest\n",
        proc__10__stat="10 (pytest) S 1 10 10\n",
        proc__11__comm="python\n",
        proc__11__stat="11 (a) b) S 10 10 10\n",
        proc__12__comm="train\n",
        proc__12__stat="12 (train) S 1 12 12\n",
    )
    assert read_processes(root, [12, 11, 99, 10], own=10) == (
        ProcessFacts(10, "pytest", True),
        ProcessFacts(11, "python", True),
        ProcessFacts(12, "train", False),
    )


def test_this_machine_is_gathered_and_survives_json() -> None:
    facts = gather(FakeDevices(), os.environ)
    assert facts.system.hostname
    assert facts.system.cores_allowed
    assert facts.software.packages["torch"]
    assert read(Facts, make_plain(facts), "facts") == facts
