"""An NVML for machines that exist only in a test."""

# ruff: noqa: N802, N815 (the names are NVML's)

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TypeVar

from pytest_gpuperf.hardware.device import Gpu

SWITCH = "switch"
ALL_LINKS = 2**32 - 1

T = TypeVar("T")


class FakeError(Exception):
    """Stands for pynvml.NVMLError."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


@dataclass
class Device:
    """One GPU of the made-up machine."""

    uuid: str
    name: str = "NVIDIA H200"
    compute_capability: tuple[int, int] = (9, 0)
    bus: str = "00000000:01:00.0"
    links: Mapping[int, str] = field(default_factory=dict)
    """What each active NVLink leads to: SWITCH or a bus address."""
    pcie: tuple[int, int] | None = (5, 16)
    c2c: bool | None = None
    """Whether it is joined to the host by NVLink-C2C; None: it knows no such link."""
    memory_bus: int | None = 6144
    """Bits."""
    memory_megahertz: int | None = 3201
    cores: Sequence[int] | None = ()
    """The cores of its NUMA node."""
    power_limit_milliwatts: int | None = 700_000
    mig: bool | None = False
    memory_bytes: int = 150_754_820_096
    free_bytes: int = 150_000_000_000
    reasons: int | None = 0
    sm_megahertz: int | None = 1980
    celsius: int | None = 40
    milliwatts: int | None = 120_000
    memory_errors: int | None = 0
    processes: Sequence[int] | None = ()
    listening: bool = True
    """Whether anybody may be told of its errors."""
    xids: list[int] = field(default_factory=list)
    """Reported by the driver, and heard by nobody so far."""
    millijoules: int | None = 0
    nvlink_kib: tuple[int, int] | None = (0, 0)
    """Payload that it has sent and received over all its links."""
    errors: Mapping[int, int] = field(default_factory=dict)
    """Counts of errors that it tells, by the field's number."""
    corrected: int | None = 0
    """ECC errors."""
    pcie_kilobytes: tuple[int, int] | None = (3, 1)
    """KB/s that it sends and receives over PCIe."""
    busy: int | None = 0
    """Percent of the time in which kernels run."""
    nvlink_totals: bool = True
    """Whether it sums its links up, or tells of each alone."""


class FakeNvml:
    """The functions of pynvml that the package calls; counts its sessions."""

    NVML_ERROR_INVALID_ARGUMENT = 2
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_TIMEOUT = 10
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
    NVML_ERROR_GPU_NOT_FOUND = 28
    NVML_NVLINK_MAX_LINKS = 36
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL = 38
    NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL = 45
    NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL = 52
    NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL = 59
    NVML_FI_DEV_PCIE_REPLAY_COUNTER = 94
    NVML_VOLATILE_ECC = 0
    NVML_NVLINK_DEVICE_TYPE_GPU = 0
    NVML_NVLINK_DEVICE_TYPE_SWITCH = 2
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = 138
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 139
    NVML_PCIE_UTIL_TX_BYTES = 0
    NVML_PCIE_UTIL_RX_BYTES = 1
    NVML_SUCCESS = 0
    nvmlEventTypeXidCriticalError = 8
    NVMLError = FakeError

    def __init__(
        self,
        devices: Sequence[Device] = (),
        levels: Mapping[frozenset[str], int] | None = None,
        init_error: int | None = None,
        lost: str | None = None,
    ) -> None:
        self.devices = devices
        self.levels = levels
        self.init_error = init_error
        self.lost = lost
        self.opened = 0
        self.closed = 0
        self.looks = 0
        """At a GPU's clocks."""
        self.sets = 0
        """Sets of events that were created and not freed."""

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise FakeError(self.init_error)
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.closed += 1

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"570.86"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:
        return self.devices[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Device:
        return next(device for device in self.devices if device.uuid == uuid)

    def nvmlDeviceGetUUID(self, device: Device) -> str:
        return device.uuid

    def nvmlDeviceGetName(self, device: Device) -> str:
        return device.name

    def nvmlDeviceGetMemoryInfo(self, device: Device) -> SimpleNamespace:
        if device.uuid == self.lost:
            raise FakeError(self.NVML_ERROR_GPU_IS_LOST)
        return SimpleNamespace(total=device.memory_bytes, free=device.free_bytes)

    def nvmlDeviceGetClockInfo(self, device: Device, clock: int) -> int:
        assert clock == self.NVML_CLOCK_SM
        return _supported(device.sm_megahertz)

    def nvmlDeviceGetTemperature(self, device: Device, sensor: int) -> int:
        assert sensor == self.NVML_TEMPERATURE_GPU
        return _supported(device.celsius)

    def nvmlDeviceGetPowerUsage(self, device: Device) -> int:
        return _supported(device.milliwatts)

    def nvmlDeviceGetCurrentClocksEventReasons(self, device: Device) -> int:
        self.looks += 1
        return _supported(device.reasons)

    def nvmlDeviceGetCpuAffinity(self, device: Device, words: int) -> list[int]:
        cores = _supported(device.cores)
        return [sum(1 << (core - 64 * word) for core in cores if core // 64 == word) for word in range(words)]

    def nvmlDeviceGetTotalEccErrors(self, device: Device, kind: int, counter: int) -> int:
        assert counter == self.NVML_VOLATILE_ECC
        uncorrected = kind == self.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        return _supported(device.memory_errors if uncorrected else device.corrected)

    def nvmlDeviceGetComputeRunningProcesses(self, device: Device) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in _supported(device.processes)]

    def nvmlDeviceGetPcieThroughput(self, device: Device, way: int) -> int:
        return _supported(device.pcie_kilobytes)[way]

    def nvmlDeviceGetUtilizationRates(self, device: Device) -> SimpleNamespace:
        return SimpleNamespace(gpu=_supported(device.busy), memory=0)

    def nvmlEventSetCreate(self) -> list[Device]:
        self.sets += 1
        return []

    def nvmlDeviceRegisterEvents(self, device: Device, kind: int, events: list[Device]) -> None:
        assert kind == self.nvmlEventTypeXidCriticalError
        _supported(device.listening or None)
        device.xids.clear()  # what was reported before is told to nobody
        events.append(device)

    def nvmlEventSetWait_v2(self, events: list[Device], milliseconds: int) -> SimpleNamespace:
        assert milliseconds == 0
        for device in events:
            if device.xids:
                return SimpleNamespace(eventData=device.xids.pop(0))
        raise FakeError(self.NVML_ERROR_TIMEOUT if events else self.NVML_ERROR_INVALID_ARGUMENT)

    def nvmlEventSetFree(self, events: list[Device]) -> None:
        self.sets -= 1

    def nvmlDeviceGetTotalEnergyConsumption(self, device: Device) -> int:
        return _supported(device.millijoules)

    def nvmlDeviceGetFieldValues(self, device: Device, fields: Sequence[tuple[int, int]]) -> list[SimpleNamespace]:
        return [self._field(device, *field) for field in fields]

    def _field(self, device: Device, number: int, scope: int) -> SimpleNamespace:
        if number in device.errors:
            return SimpleNamespace(nvmlReturn=self.NVML_SUCCESS, value=SimpleNamespace(ullVal=device.errors[number]))
        throughput = number >= self.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
        told = throughput and device.nvlink_kib is not None and (scope == ALL_LINKS) is device.nvlink_totals
        if not told:
            return SimpleNamespace(nvmlReturn=self.NVML_ERROR_NOT_SUPPORTED, value=SimpleNamespace(ullVal=0))
        assert device.nvlink_kib is not None
        kib = device.nvlink_kib[number - self.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX]
        share = kib if scope == ALL_LINKS else kib // len(device.links)
        return SimpleNamespace(nvmlReturn=self.NVML_SUCCESS, value=SimpleNamespace(ullVal=share))

    def nvmlDeviceGetCudaComputeCapability(self, device: Device) -> tuple[int, int]:
        return device.compute_capability

    def nvmlDeviceGetPciInfo(self, device: Device) -> SimpleNamespace:
        return SimpleNamespace(busId=device.bus.encode())

    def nvmlDeviceGetMigMode(self, device: Device) -> list[int]:
        return [int(_supported(device.mig)), 0]

    def nvmlDeviceGetPowerManagementLimit(self, device: Device) -> int:
        return _supported(device.power_limit_milliwatts)

    def nvmlDeviceGetMaxPcieLinkGeneration(self, device: Device) -> int:
        return _supported(device.pcie)[0]

    def nvmlDeviceGetMaxPcieLinkWidth(self, device: Device) -> int:
        return _supported(device.pcie)[1]

    def nvmlDeviceGetC2cModeInfoV(self, device: Device) -> SimpleNamespace:
        return SimpleNamespace(isC2cEnabled=int(_supported(device.c2c)))

    def nvmlDeviceGetMemoryBusWidth(self, device: Device) -> int:
        return _supported(device.memory_bus)

    def nvmlDeviceGetMaxClockInfo(self, device: Device, clock: int) -> int:
        assert clock == self.NVML_CLOCK_MEM
        return _supported(device.memory_megahertz)

    def nvmlDeviceGetNvLinkState(self, device: Device, link: int) -> int:
        if not device.links:
            raise FakeError(self.NVML_ERROR_NOT_SUPPORTED)
        if link > max(device.links):
            raise FakeError(self.NVML_ERROR_INVALID_ARGUMENT)
        return int(link in device.links)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, device: Device, link: int) -> int:
        is_switch = device.links[link] == SWITCH
        return self.NVML_NVLINK_DEVICE_TYPE_SWITCH if is_switch else self.NVML_NVLINK_DEVICE_TYPE_GPU

    def nvmlDeviceGetNvLinkRemotePciInfo(self, device: Device, link: int) -> SimpleNamespace:
        return SimpleNamespace(busId=device.links[link].lower())

    def nvmlDeviceGetTopologyCommonAncestor(self, a: Device, b: Device) -> int:
        return _supported(self.levels)[frozenset({a.uuid, b.uuid})]


def _supported(value: T | None) -> T:
    if value is None:
        raise FakeError(FakeNvml.NVML_ERROR_NOT_SUPPORTED)
    return value


def gpu_of(device: Device) -> Gpu:
    """The description of a device, without asking NVML."""
    return Gpu(
        uuid=device.uuid,
        name=device.name,
        memory_bytes=device.memory_bytes,
        compute_capability=device.compute_capability,
        pci_bus_id=device.bus.upper(),
        nvlinks=len(device.links),
        power_limit_watts=None if device.power_limit_milliwatts is None else device.power_limit_milliwatts / 1000,
    )
