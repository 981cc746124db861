"""What was seen of a machine, as values that JSON carries. A fact that nobody could read is None, or empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_gpuperf.baselines.plain import OPTIONAL
from pytest_gpuperf.hardware.inspection import Inspection

UNLIMITED = -1
"""A resource limit that is none."""


@dataclass(frozen=True, slots=True)
class SystemFacts:
    """The operating system and the CPUs."""

    hostname: str = field(default="", metadata=OPTIONAL)
    boot_id: str = field(default="", metadata=OPTIONAL)
    """Differs between machines and between starts of one; NCCL hashes it with the host name."""
    kernel: str = field(default="", metadata=OPTIONAL)
    iommu_options: tuple[str, ...] = field(default=(), metadata=OPTIONAL)
    """Words of the kernel's command line about the IOMMU."""
    cores_online: int | None = field(default=None, metadata=OPTIONAL)
    cores_allowed: tuple[int, ...] = field(default=(), metadata=OPTIONAL)
    """Cores on which this process may run."""
    cpu_quota: float | None = field(default=None, metadata=OPTIONAL)
    """Cores' worth of time that the cgroup may use; None: no limit, or unknown."""
    nodes: Mapping[str, tuple[int, ...]] = field(default_factory=dict, metadata=OPTIONAL)
    """Cores of each NUMA node."""
    governors: tuple[str, ...] = field(default=(), metadata=OPTIONAL)
    """Frequency governors in use, each once."""
    numa_balancing: bool | None = field(default=None, metadata=OPTIONAL)
    iommu_translates: bool | None = field(default=None, metadata=OPTIONAL)
    """Whether devices reach memory through IOMMU page tables, by the kernel's groups; False if they bypass it."""
    memory_bytes: int | None = field(default=None, metadata=OPTIONAL)
    memory_free_bytes: int | None = field(default=None, metadata=OPTIONAL)
    modules: tuple[str, ...] | None = field(default=None, metadata=OPTIONAL)
    """Kernel modules that GPUs and networks need, of those that are loaded."""
    pci_gpus: int | None = field(default=None, metadata=OPTIONAL)
    """NVIDIA GPUs on the PCI bus, whether the driver shows them or not."""
    xids: tuple[tuple[str, int], ...] | None = field(default=None, metadata=OPTIONAL)
    """Xids in the kernel's log, with the PCI address; None if the log is closed to this process."""


@dataclass(frozen=True, slots=True)
class IsolationFacts:
    """What a container, a cgroup or a login gives this process."""

    container: str = field(default="", metadata=OPTIONAL)
    """kubernetes, docker, podman, container; empty outside of one."""
    shm_bytes: int | None = field(default=None, metadata=OPTIONAL)
    """Size of /dev/shm; 0 if it is not there."""
    shm_free_bytes: int | None = field(default=None, metadata=OPTIONAL)
    host_ipc: bool | None = field(default=None, metadata=OPTIONAL)
    """Whether the IPC namespace is the host's."""
    host_pid: bool | None = field(default=None, metadata=OPTIONAL)
    """Whether process ids are the host's."""
    limits: Mapping[str, tuple[int, int]] = field(default_factory=dict, metadata=OPTIONAL)
    """Soft and hard resource limits by their names in ulimit's terms: memlock, nofile, nproc, stack, core."""
    capabilities: tuple[str, ...] | None = field(default=None, metadata=OPTIONAL)
    """The capabilities that this process has of CAP_IPC_LOCK, CAP_SYS_NICE, CAP_SYS_PTRACE and CAP_SYS_ADMIN."""


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """One port of an InfiniBand, RoCE or EFA device."""

    device: str
    port: int
    driver: str = field(default="", metadata=OPTIONAL)
    state: str = field(default="", metadata=OPTIONAL)
    """ACTIVE, DOWN, INIT, ARMED."""
    physical: str = field(default="", metadata=OPTIONAL)
    """LinkUp, Disabled, Polling."""
    layer: str = field(default="", metadata=OPTIONAL)
    """InfiniBand or Ethernet."""
    gbit: float | None = field(default=None, metadata=OPTIONAL)
    """Rate in Gbit/s, as the kernel reports it."""
    numa_node: int | None = field(default=None, metadata=OPTIONAL)
    errors: Mapping[str, int] = field(default_factory=dict, metadata=OPTIONAL)
    """Counters of errors above 0: symbol_error, link_downed, port_rcv_errors, link_error_recovery."""


@dataclass(frozen=True, slots=True)
class InterfaceFacts:
    """One network interface."""

    name: str
    up: bool
    mtu: int | None = field(default=None, metadata=OPTIONAL)
    megabit: int | None = field(default=None, metadata=OPTIONAL)
    physical: bool = field(default=False, metadata=OPTIONAL)
    """Whether a device is behind it, and not only software."""


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """How this machine reaches others."""

    ports: tuple[RdmaPort, ...] = field(default=(), metadata=OPTIONAL)
    interfaces: tuple[InterfaceFacts, ...] = field(default=(), metadata=OPTIONAL)
    plugins: tuple[str, ...] = field(default=(), metadata=OPTIONAL)
    """Network plugins of NCCL on the library path, by file name."""


@dataclass(frozen=True, slots=True)
class SoftwareFacts:
    """Versions that are installed."""

    python: str = field(default="", metadata=OPTIONAL)
    packages: Mapping[str, str] = field(default_factory=dict, metadata=OPTIONAL)
    """Versions by the names of packages."""
    torch_cuda: str | None = field(default=None, metadata=OPTIONAL)
    """The CUDA that torch was built for; empty for a build without CUDA; None without torch."""
    required: Mapping[str, str] = field(default_factory=dict, metadata=OPTIONAL)
    """Exact versions of NVIDIA's packages that the installed torch requires."""


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One process of which the operating system reports more than its number."""

    pid: int
    command: str = field(default="", metadata=OPTIONAL)
    ours: bool = field(default=False, metadata=OPTIONAL)
    """Whether it is this process, or one that this process started."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was seen of one machine."""

    inspection: Inspection = field(default_factory=Inspection, metadata=OPTIONAL)
    system: SystemFacts = field(default_factory=SystemFacts, metadata=OPTIONAL)
    isolation: IsolationFacts = field(default_factory=IsolationFacts, metadata=OPTIONAL)
    network: NetworkFacts = field(default_factory=NetworkFacts, metadata=OPTIONAL)
    software: SoftwareFacts = field(default_factory=SoftwareFacts, metadata=OPTIONAL)
    variables: Mapping[str, str] = field(default_factory=dict, metadata=OPTIONAL)
    """Variables of the environment that NCCL, CUDA, torch and NVIDIA's libraries read."""
    configured: Mapping[str, Mapping[str, str]] = field(default_factory=dict, metadata=OPTIONAL)
    """Variables that NCCL reads from its configuration files, by file."""
    unreadable: Mapping[str, str] = field(default_factory=dict, metadata=OPTIONAL)
    """Why NCCL's configuration files that are there cannot be read, by file."""
    processes: tuple[ProcessFacts, ...] = field(default=(), metadata=OPTIONAL)
    """Those on the GPUs that are visible here."""
    pcie_traffic: Mapping[str, float] = field(default_factory=dict, metadata=OPTIONAL)
    """Bytes/s over the PCIe link of each GPU while this process leaves it alone, by UUID; empty if nobody looked."""

    @property
    def settings(self) -> dict[str, str]:
        """What NCCL reads: its configuration files, then the environment, which wins."""
        found = {name: value for variables in self.configured.values() for name, value in variables.items()}
        return {**found, **self.variables}
