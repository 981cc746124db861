"""NVIDIA's GPUs, asked about through NVML. Calls of pynvml are here and in ``nvml_inspection`` alone.

NVML answers without a CUDA context, so the pytest process may ask it and still fork ranks afterwards.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import pynvml

from pytest_gpuperf.hardware.device import (
    SWITCH,
    ClockReason,
    Counters,
    Distance,
    Gpu,
    HardwareError,
    Health,
    Observation,
    Pcie,
    Xid,
)
from pytest_gpuperf.hardware.inspection import GpuFacts, Inspection
from pytest_gpuperf.hardware.nvml_inspection import NvmlInspector
from pytest_gpuperf.hardware.visibility import list_visible_indices, require_one_order

Library: TypeAlias = Any
"""The pynvml module or, in tests, an object with the same functions."""

_BITS_OF_A_WORD = 64  # of NVML's masks of cores, which are unsigned longs
_ALL_LINKS = 2**32 - 1  # UINT_MAX as the scope of a field: all links together (nvml.h, "NVLink Throughput counters")

# nvml.h, "Clocks event reasons". The others, such as clocks that a user has set, bear on no measurement.
_REASONS = {
    0x1: ClockReason.IDLE,
    0x4: ClockReason.POWER_CAP,
    0x8: ClockReason.HARDWARE_SLOWDOWN,
    0x20: ClockReason.SOFTWARE_THERMAL_SLOWDOWN,
    0x40: ClockReason.HARDWARE_THERMAL_SLOWDOWN,
    0x80: ClockReason.POWER_BRAKE,
}

# nvml.h, "Field Identifiers": totals over all links, where there are several.
_ERRORS = {
    "NVLink CRC of flits": "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "NVLink CRC of data": "NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
    "NVLink replays": "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "NVLink recoveries": "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    "PCIe replays": "NVML_FI_DEV_PCIE_REPLAY_COUNTER",
}

# nvml.h, nvmlGpuTopologyLevel_t; two GPUs of one board (0) share its switch.
_DISTANCES = {
    0: Distance.PIX,
    10: Distance.PIX,
    20: Distance.PXB,
    30: Distance.PHB,
    40: Distance.NODE,
    50: Distance.SYS,
}


class Nvml:
    """``Devices`` by NVML."""

    def __init__(self, library: Library = pynvml) -> None:
        self._library = library

    @contextmanager
    def session(self) -> Iterator[bool]:
        """Keeps NVML open, which counts how often; yields whether this machine has NVML and a driver."""
        nvml = self._library
        absent = {
            nvml.NVML_ERROR_LIBRARY_NOT_FOUND,
            nvml.NVML_ERROR_DRIVER_NOT_LOADED,
            nvml.NVML_ERROR_GPU_NOT_FOUND,
        }
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            if error.value not in absent:
                raise HardwareError(
                    f"NVML did not start: got {str(error)!r}, expected a driver and a library of one version: "
                    "check that nvidia-smi runs, and restart after a driver update"
                ) from error
            yield False
            return
        try:
            yield True
        except nvml.NVMLError as error:
            raise HardwareError(
                f"NVML could not describe a GPU: got {str(error)!r}: check the GPU's health with nvidia-smi -q"
            ) from error
        finally:
            nvml.nvmlShutdown()

    def make_gone_error(self, unanswered: str) -> HardwareError:
        """Makes the error for an NVML that has listed GPUs and is not there now."""
        return HardwareError(
            f"NVML is not there to say {unanswered}, expected it where they were found: check that nvidia-smi runs"
        )

    def driver_version(self) -> str | None:
        """The driver's version; None without a driver."""
        with self.session() as present:
            return _decode_text(self._library.nvmlSystemGetDriverVersion()) if present else None

    def visible(self, environ: Mapping[str, str]) -> tuple[Gpu, ...]:
        """Lists the GPUs that CUDA would show.

        Args:
            environ: The environment to read CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER from.

        Returns:
            The GPUs; empty without an NVML library, driver or GPU.

        Raises:
            HardwareError: For MIG slices, for a list that CUDA reads otherwise than it looks, and for a GPU that
                NVML cannot describe.
        """
        nvml = self._library
        with self.session() as present:
            if not present:
                return ()
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
            visible = environ.get("CUDA_VISIBLE_DEVICES")
            chosen = list_visible_indices(visible, [nvml.nvmlDeviceGetUUID(handle) for handle in handles])
            if visible is not None and chosen and not visible.strip().startswith("GPU-"):
                require_one_order(environ, [nvml.nvmlDeviceGetName(handle) for handle in handles])
            return tuple(self._read_gpu(handles[index]) for index in chosen)

    def used_memory(self, uuid: str) -> int:
        """Bytes in use on a GPU, by all processes and the driver."""
        with self.session() as present:
            if not present:
                raise HardwareError(
                    f"memory of GPU {uuid!r}: got no driver, expected the one that told the UUID: check that "
                    "nvidia-smi runs"
                )
            return int(self._library.nvmlDeviceGetMemoryInfo(self._handle(uuid)).used)

    def observe(self, uuid: str, *, links: bool = True) -> Observation:
        """Looks at a GPU."""
        nvml, handle = self._library, self._handle(uuid)
        megahertz = self._tell(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)
        celsius = self._tell(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        milliwatts = self._tell(nvml.nvmlDeviceGetPowerUsage, handle)
        processes = self._tell(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        bits = self._tell(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        states = [state for _, state in self._link_states(handle)] if links else []
        return Observation(
            uuid=uuid,
            reasons=None if bits is None else frozenset(reason for bit, reason in _REASONS.items() if bits & bit),
            sm_hertz=None if megahertz is None else megahertz * 1e6,
            nvlinks=sum(states) if states else None,
            memory_errors=self._tell(
                nvml.nvmlDeviceGetTotalEccErrors,
                handle,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            ),
            processes=None if processes is None else frozenset(process.pid for process in processes),
            free_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).free,
            kelvin=None if celsius is None else celsius + 273.15,
            watts=None if milliwatts is None else milliwatts / 1e3,
        )

    def counters(self, uuid: str) -> Counters:
        """Reads a GPU's counters."""
        nvml, handle = self._library, self._handle(uuid)
        millijoules = self._tell(nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        return Counters(
            joules=None if millijoules is None else millijoules / 1e3,
            nvlink_sent=self._read_nvlink_bytes(handle, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX),
            nvlink_received=self._read_nvlink_bytes(handle, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX),
        )

    def health(self, uuid: str) -> Health:
        """Reads a GPU's error counts, temperature, power and clock."""
        nvml, handle = self._library, self._handle(uuid)
        seen = self.observe(uuid, links=False)
        errors = {name: self._read_field(handle, getattr(nvml, field)) for name, field in _ERRORS.items()}
        errors["ECC corrected"] = self._tell(
            nvml.nvmlDeviceGetTotalEccErrors, handle, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC
        )
        errors["ECC uncorrected"] = seen.memory_errors
        return Health(uuid, errors, seen.kelvin, seen.watts, seen.sm_hertz)

    def listen(self, uuids: Sequence[str]) -> "XidListener":
        """Listens to the driver's Xids."""
        return XidListener(uuids, self._library)

    def link_ends(self, uuid: str) -> tuple[str, ...]:
        """What each active NVLink leads to: a switch, or the device at a PCI address."""
        handle = self._handle(uuid)
        return tuple(self._link_end(handle, link) for link in self._list_active_links(handle))

    def distance(self, a: str, b: str) -> Distance | None:
        """How far apart two GPUs are on PCIe; None on a virtual machine that hides it."""
        query = self._library.nvmlDeviceGetTopologyCommonAncestor
        level = self._tell(query, self._handle(a), self._handle(b))
        return None if level is None else _DISTANCES[level]

    def pcie(self, uuid: str) -> Pcie | None:
        """The GPU's PCIe link; None where the machine hides it, or the GPU reaches the host by NVLink-C2C."""
        handle = self._handle(uuid)
        c2c = self._tell(self._library.nvmlDeviceGetC2cModeInfoV, handle)
        if c2c is not None and c2c.isC2cEnabled:
            return None
        generation = self._tell(self._library.nvmlDeviceGetMaxPcieLinkGeneration, handle)
        lanes = self._tell(self._library.nvmlDeviceGetMaxPcieLinkWidth, handle)
        return None if generation is None or lanes is None else Pcie(generation, lanes)

    def cores(self, uuid: str) -> frozenset[int]:
        """The CPU cores of the NUMA node that the GPU is at; empty if it does not tell."""
        words = -(-(os.cpu_count() or 1) // _BITS_OF_A_WORD)
        masks = self._tell(self._library.nvmlDeviceGetCpuAffinity, self._handle(uuid), words) or ()
        return frozenset(
            _BITS_OF_A_WORD * place + bit
            for place, mask in enumerate(masks)
            for bit in range(_BITS_OF_A_WORD)
            if int(mask) >> bit & 1
        )

    def memory_rate(self, uuid: str) -> float | None:
        """Bytes/s of the GPU's memory: the width of its bus, twice for each cycle of the fastest clock.

        All memories of NVIDIA's data center GPUs send at both edges: an H100 SXM's 5120 bits at 2619 MHz are the data
        sheet's 3.35 TB/s.
        """
        nvml, handle = self._library, self._handle(uuid)
        bits = self._tell(nvml.nvmlDeviceGetMemoryBusWidth, handle)
        megahertz = self._tell(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_MEM)
        return None if not bits or not megahertz else bits / 8 * 2 * megahertz * 1e6

    def pcie_traffic(self) -> dict[str, float]:
        """Return the bytes/s that cross each GPU's PCIe link now, by UUID; NVML counts for 20 ms each way."""
        nvml, found = self._library, {}
        ways = (nvml.NVML_PCIE_UTIL_TX_BYTES, nvml.NVML_PCIE_UTIL_RX_BYTES)
        try:
            with self.session() as present:
                for index in range(nvml.nvmlDeviceGetCount() if present else 0):
                    handle = self._tell(nvml.nvmlDeviceGetHandleByIndex, index)
                    uuid = None if handle is None else self._tell(nvml.nvmlDeviceGetUUID, handle)
                    if uuid is None:
                        continue
                    rates = [self._tell(nvml.nvmlDeviceGetPcieThroughput, handle, way) for way in ways]
                    if None not in rates:  # they are in KB/s
                        found[uuid if isinstance(uuid, str) else uuid.decode()] = 1e3 * sum(map(float, rates))
        except (HardwareError, nvml.NVMLError):
            return {}
        return found

    def inspect(self) -> Inspection:
        """Describes the whole machine for a diagnosis, MIG slices, lost GPUs and a broken driver included."""
        words = {bit: reason.value for bit, reason in _REASONS.items()}
        try:
            with self.session() as present:
                if not present:
                    return Inspection(present=False)
                found = NvmlInspector(self._library, _DISTANCES, words).inspect()
                return replace(found, gpus=tuple(self._add_counts(gpu) for gpu in found.gpus))
        except HardwareError as error:
            return Inspection(problem=str(error))

    def _add_counts(self, gpu: GpuFacts) -> GpuFacts:
        """Return the facts with the GPU's error counts and the cores of its NUMA node."""
        if gpu.problem:
            return gpu
        try:
            counts = self.health(gpu.uuid).errors
            cores = self.cores(gpu.uuid)
        except self._library.NVMLError as error:
            return replace(gpu, problem=str(error))
        errors = {name: count for name, count in counts.items() if count is not None}
        return replace(gpu, errors=errors, cores=tuple(sorted(cores)))

    def _handle(self, uuid: str) -> Any:
        return self._library.nvmlDeviceGetHandleByUUID(uuid)

    def _read_gpu(self, handle: Any) -> Gpu:
        nvml = self._library
        uuid = nvml.nvmlDeviceGetUUID(handle)
        mig = self._tell(nvml.nvmlDeviceGetMigMode, handle)
        if mig is not None and mig[0]:
            raise HardwareError(
                f"GPU {uuid!r} is split into MIG slices, expected whole GPUs, which NCCL needs: turn MIG off "
                "with nvidia-smi -mig 0, or leave the GPU out of CUDA_VISIBLE_DEVICES"
            )
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        milliwatts = self._tell(nvml.nvmlDeviceGetPowerManagementLimit, handle)
        return Gpu(
            uuid=uuid,
            name=nvml.nvmlDeviceGetName(handle),
            memory_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
            compute_capability=(major, minor),
            pci_bus_id=_format_bus_id(nvml.nvmlDeviceGetPciInfo(handle)),
            nvlinks=len(self._list_active_links(handle)),
            power_limit_watts=None if milliwatts is None else milliwatts / 1000,
        )

    def _link_states(self, handle: Any) -> list[tuple[int, int]]:
        """Number and state, 1 if it is active, of each NVLink of which the GPU tells."""
        nvml = self._library
        links = range(nvml.NVML_NVLINK_MAX_LINKS)
        states = [(link, self._tell(nvml.nvmlDeviceGetNvLinkState, handle, link)) for link in links]
        return [(link, state) for link, state in states if state is not None]

    def _list_active_links(self, handle: Any) -> tuple[int, ...]:
        return tuple(link for link, state in self._link_states(handle) if state)

    def _link_end(self, handle: Any, link: int) -> str:
        nvml = self._library
        if self._tell(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link) == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            return SWITCH
        return _format_bus_id(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))

    def _read_nvlink_bytes(self, handle: Any, field: int) -> int | None:
        nvml = self._library
        for scopes in ((_ALL_LINKS,), self._list_active_links(handle)):
            if not scopes:
                continue
            answers = self._tell(nvml.nvmlDeviceGetFieldValues, handle, [(field, scope) for scope in scopes])
            if answers is not None and all(answer.nvmlReturn == nvml.NVML_SUCCESS for answer in answers):
                return 1024 * sum(int(answer.value.ullVal) for answer in answers)  # NVML counts KiB
        return None

    def _read_field(self, handle: Any, field: int) -> int | None:
        answers = self._tell(self._library.nvmlDeviceGetFieldValues, handle, [(field, 0)])
        if answers is None or answers[0].nvmlReturn != self._library.NVML_SUCCESS:
            return None
        return int(answers[0].value.ullVal)

    def _tell(self, query: Callable[..., Any], *args: Any) -> Any:
        """The answer; None where this GPU, link, virtual machine or container has no answer to the query."""
        nvml = self._library
        try:
            return query(*args)
        except nvml.NVMLError as error:
            # Links beyond the last one are an invalid argument on some GPUs and unsupported on others.
            unanswered = (
                nvml.NVML_ERROR_NOT_SUPPORTED,
                nvml.NVML_ERROR_INVALID_ARGUMENT,
                nvml.NVML_ERROR_NO_PERMISSION,
                nvml.NVML_ERROR_FUNCTION_NOT_FOUND,  # the driver is older than the question
            )
            if error.value in unanswered:
                return None
            raise


class XidListener:
    """``Listener`` by NVML's events."""

    def __init__(self, uuids: Sequence[str], library: Library) -> None:
        """Listens, in the caller's session, to the GPUs of these UUIDs."""
        self._library = library
        # A set of its own for each GPU: an event's handle need not be the one that the GPU was asked for by.
        self._sets = {uuid: events for uuid in uuids if (events := self._listen(uuid)) is not None}

    def close(self) -> tuple[Xid, ...]:
        """Ends the listening; returns what was reported meanwhile."""
        heard: list[Xid] = []
        for uuid, events in self._sets.items():
            while (number := self._read_next(events)) is not None:
                heard.append(Xid(uuid, number))
            self._library.nvmlEventSetFree(events)
        self._sets = {}
        return tuple(heard)

    def _listen(self, uuid: str) -> Any:
        # Whatever the reason why nobody may listen: a measurement does not fail for it.
        nvml = self._library
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return None
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError:
            nvml.nvmlEventSetFree(events)
            return None
        return events

    def _read_next(self, events: Any) -> int | None:
        try:
            return int(self._library.nvmlEventSetWait_v2(events, 0).eventData)
        except self._library.NVMLError:  # NVML_ERROR_TIMEOUT: nothing more was reported; or nobody tells any more
            return None


def _format_bus_id(pci_info: Any) -> str:
    """Spells a PCI address one way, so that two of them compare equal."""
    return _decode_text(pci_info.busId).upper()


def _decode_text(raw: Any) -> str:
    return raw.decode() if isinstance(raw, bytes) else str(raw)
