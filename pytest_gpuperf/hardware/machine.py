"""The hardware that one pytest run uses, found out without initialising CUDA.

``find_devices`` alone chooses the vendor's library, for the pytest process and for ranks.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_gpuperf.hardware.device import Devices, Gpu, HardwareError
from pytest_gpuperf.hardware.key import make_hardware_key, match_fields
from pytest_gpuperf.hardware.linkage import Linkage, compute_pcie_rate, linkage
from pytest_gpuperf.hardware.network import Network
from pytest_gpuperf.hardware.numa import describe_nodes, read_nodes
from pytest_gpuperf.hardware.nvml import Nvml
from pytest_gpuperf.hardware.setup import describe_setup

_HOPPER = (9, 0)  # NVLink SHARP, the switch's own reduction, came with it


def find_devices() -> Devices:
    """The library that describes this machine's GPUs: the one place that chooses among vendors."""
    return Nvml()


@dataclass(frozen=True, slots=True)
class Machine:
    """GPUs of a run and how they are linked; no GPUs for gloo on CPUs."""

    gpus: tuple[Gpu, ...]
    linkage: Linkage | None
    environ_multicast: bool
    """Whether the environment lets NCCL use the switch's multicast."""
    driver: str | None = None
    """Version of the NVIDIA driver."""
    everything: tuple[str, ...] = ()
    """UUIDs of all GPUs of the machine, also of those that the run does not use; a perf test wants them quiet."""
    fabric: str = ""
    """Label of the network that joins a node of a cluster to the others; empty without a cluster."""
    node_keys: tuple[str, ...] = ()
    """Hardware key and network of each node of a cluster; empty for one machine."""
    node_gpus: tuple[int, ...] = ()
    """Number of GPUs of each node of a cluster; empty for one machine."""
    network: Network | None = None
    """The network of a node of a cluster, or of all nodes; None without a cluster, or if nobody told."""
    memory_told: float | None = None
    """What a node of a cluster has told of ``memory_rate``; None if this machine is to be asked."""
    host_told: float | None = None
    """The ``host_rate`` that a node of a cluster has reported; None if this machine is to be asked."""
    devices: Devices = field(default_factory=find_devices, compare=False, repr=False)
    """Describes the GPUs, and watches them."""

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        """In the order of the ranks."""
        return tuple(gpu.uuid for gpu in self.gpus)

    @property
    def identity(self) -> str:
        """Tells these GPUs from others of their kind: a digest of their UUIDs; empty without GPUs."""
        uuids = " ".join(sorted(self.gpu_uuids))
        return hashlib.sha256(uuids.encode()).hexdigest()[:12] if uuids else ""

    @property
    def key(self) -> str:
        """The hardware key; ``cpu`` where there is no GPU, which has no baselines."""
        if self.linkage is None:
            return "cpu"
        if not self.node_keys:
            return make_hardware_key(self.gpus, self.linkage)
        kinds = Counter(self.node_keys)
        return "+".join(f"{count}n-{key}" for key, count in sorted(kinds.items()))

    @property
    def match(self) -> dict[str, Any]:
        """The facts behind the key, as a baselines file keeps them."""
        return {} if self.linkage is None else dict(match_fields(self.gpus, self.linkage))

    @property
    def multicast(self) -> bool:
        """Whether collectives may move fewer bytes than their ring algorithm must; it is NVLink's switch that adds."""
        over_nvlink = self.linkage is not None and self.linkage.kind == "nvlink"
        hopper = any(gpu.compute_capability >= _HOPPER for gpu in self.gpus)
        return over_nvlink and self.environ_multicast and hopper

    @property
    def host_rate(self) -> float | None:
        """Bytes/s between the host's memory and the GPU with the slowest slot, one direction; None if unknown."""
        if self.host_told is not None or self.node_keys:
            return self.host_told
        with self.devices.session() as present:
            return compute_pcie_rate(self.devices, self.gpus) if present and self.gpus else None

    @property
    def memory_rate(self) -> float | None:
        """Bytes/s of the slowest GPU's own memory, reads and writes together; None if unknown."""
        if self.memory_told is not None or self.node_keys:
            return self.memory_told
        with self.devices.session() as present:
            rates = [self.devices.memory_rate(gpu.uuid) for gpu in self.gpus] if present else []
        told = [rate for rate in rates if rate is not None]
        return min(told) if told and len(told) == len(self.gpus) else None

    def find_cores_near(self, uuids: Sequence[str], allowed: frozenset[int]) -> tuple[frozenset[int], ...]:
        """For each GPU the allowed cores of its NUMA node; nothing if that leaves no GPU out of any core.

        Args:
            uuids: the GPUs'.
            allowed: cores that this process may use.
        """
        with self.devices.session() as present:
            near = [self.devices.cores(uuid) & allowed for uuid in uuids] if present else []
        # A machine of one node, or one that does not tell, has nothing to choose.
        return tuple(near) if all(near) and any(cores != allowed for cores in near) else ()

    @property
    def software(self) -> dict[str, str]:
        """Versions that the hardware's own library tells."""
        return {"driver": self.driver} if self.driver else {}

    @property
    def setup(self) -> dict[str, str]:
        """How the GPUs of the run are set up now, by the names of ``describe_setup``."""
        return describe_setup(self.devices.inspect(), self.gpu_uuids, read_nodes()) if self.gpus else {}

    def placement(self, allowed: frozenset[int], *, binds: bool) -> dict[str, str]:
        """The placement of ranks that measure, by name: ``numa binding`` is on or off.

        ``cpu numa nodes`` are the nodes of the cores that they may use: each is bound to those of its GPU's node among
        them, or to none. Nothing without GPUs.

        Args:
            allowed: cores that this process may use.
            binds: whether the user lets ranks be bound.
        """
        if not self.gpus:
            return {}
        bound = binds and bool(self.find_cores_near(self.gpu_uuids, allowed))
        told = {"cpu numa nodes": describe_nodes(allowed, read_nodes()), "numa binding": "on" if bound else "off"}
        return {name: text for name, text in told.items() if text}

    def describe(self) -> str:
        """One line for the header of a run."""
        if not self.gpus:
            return f"ranks run on {len(os.sched_getaffinity(0))} CPU cores with gloo"
        return f"ranks run on {len(self.gpus)} GPUs with NCCL, hardware key {self.key}"

    @classmethod
    def of(cls, wanted: int | None, environ: Mapping[str, str] = os.environ) -> Machine:
        """The machine of a run with ``--gpus wanted``.

        Raises:
            HardwareError: it has fewer GPUs, or they cannot be told.
        """
        if wanted == 0:
            return cls((), None, False)
        devices = find_devices()
        visible = devices.visible(environ)
        if wanted is not None and wanted > len(visible):
            hint = " through CUDA_VISIBLE_DEVICES" if "CUDA_VISIBLE_DEVICES" in environ else ""
            if not visible:
                raise HardwareError(
                    f"--gpus {wanted}: no GPU is visible{hint}: check nvidia-smi and CUDA_VISIBLE_DEVICES"
                )
            raise HardwareError(f"--gpus {wanted}: {len(visible)} GPUs are visible{hint}")
        gpus = visible if wanted is None else visible[:wanted]
        if not gpus:
            return cls((), None, False)
        return cls(
            gpus,
            linkage(gpus, devices),
            environ_multicast=environ.get("NCCL_NVLS_ENABLE") != "0",
            driver=devices.driver_version(),
            everything=_list_everything(devices, gpus),
            devices=devices,
        )


def _list_everything(devices: Devices, gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
    try:
        return tuple(gpu.uuid for gpu in devices.visible({}))
    except HardwareError:  # another GPU, split into MIG slices, is no neighbour to wait for
        return tuple(gpu.uuid for gpu in gpus)
