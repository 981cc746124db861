"""What NVML reports of a machine beyond what a run asks: ``Devices.inspect`` by NVML.

Every question stands alone. One that this driver, GPU or container does not answer leaves its fact unknown.
"""

import ctypes
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any, TypeAlias

from pytest_gpuperf.hardware.device import SWITCH, Distance
from pytest_gpuperf.hardware.inspection import GpuFacts, Inspection, LinkFacts, PairFacts, PcieFacts, RowsFacts

Library: TypeAlias = Any

_KELVIN = 273.15

# nvml.h: nvmlGpuFabricState_t, nvmlGpuP2PStatus_t, nvmlComputeMode_t, nvmlDeviceGpuRecoveryAction_t.
_FABRIC = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
_P2P = {
    0: "ok",
    1: "the chipset does not support it",
    2: "the GPU does not support it",
    3: "the I/O hub's topology does not support it",
    4: "a registry key disables it",
    5: "not supported",
}
_P2P_KINDS = {"read": 0, "write": 1, "atomics": 3}
_COMPUTE = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_RECOVERY = {0: "none", 1: "reset", 2: "reboot", 3: "drain peers", 4: "drain and reset", 7: "reboot"}


class NvmlInspector:
    """Asks NVML about every GPU, in the caller's session."""

    def __init__(self, library: Library, distances: Mapping[int, Distance], reasons: Mapping[int, str]) -> None:
        """Takes what ``nvml`` has.

        Args:
            library: pynvml, or in tests an object with some of its functions.
            distances: NVML's topology levels in the words of ``device``.
            reasons: NVML's clock event reasons in the words of ``device``.
        """
        self._library = library
        self._distances = distances
        self._reasons = reasons

    def inspect(self) -> Inspection:
        """Describes the machine; a GPU that cannot be described has its problem in place of its facts."""
        nvml = self._library
        handles = [self._handle(index) for index in range(self._tell(nvml.nvmlDeviceGetCount) or 0)]
        gpus = tuple(self._read_gpu(index, handle) for index, handle in enumerate(handles))
        pairs = tuple(
            self._read_pair(a, b, handles[a], handles[b])
            for a, b in combinations(range(len(handles)), 2)
            if handles[a] is not None and handles[b] is not None
        )
        return Inspection(_decode_text(self._tell(nvml.nvmlSystemGetDriverVersion)), self._read_cuda(), gpus, pairs)

    def _handle(self, index: int) -> Any:
        try:
            return self._library.nvmlDeviceGetHandleByIndex(index)
        except self._library.NVMLError:
            return None

    def _read_cuda(self) -> str:
        number = self._ask("nvmlSystemGetCudaDriverVersion")
        return "" if number is None else f"{number // 1000}.{number % 1000 // 10}"

    def _read_gpu(self, index: int, handle: Any) -> GpuFacts:
        nvml = self._library
        if handle is None:
            return GpuFacts(uuid="", problem=f"NVML counts a GPU at index {index} and cannot open it")
        try:
            uuid = _decode_text(nvml.nvmlDeviceGetUUID(handle))
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            return GpuFacts(uuid=_decode_text(self._tell(nvml.nvmlDeviceGetUUID, handle)), problem=str(error))
        pci = self._tell(nvml.nvmlDeviceGetPciInfo, handle)
        ecc = self._ask("nvmlDeviceGetEccMode", handle)
        mig = self._ask("nvmlDeviceGetMigMode", handle)
        rows = self._ask("nvmlDeviceGetRemappedRows", handle)
        pages = self._ask("nvmlDeviceGetRetiredPagesPendingStatus", handle)
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        c2c = self._ask("nvmlDeviceGetC2cModeInfoV", handle)
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
        return GpuFacts(
            uuid=uuid,
            name=_decode_text(self._tell(nvml.nvmlDeviceGetName, handle)),
            pci_bus_id="" if pci is None else _decode_text(pci.busId).upper(),
            compute_capability=tuple(self._ask("nvmlDeviceGetCudaComputeCapability", handle) or ()),
            memory_bytes=int(memory.total),
            used_bytes=int(memory.total - memory.free),
            vbios=_decode_text(self._ask("nvmlDeviceGetVbiosVersion", handle)),
            links=self._read_links(handle),
            fabric=self._read_fabric(handle),
            c2c=None if c2c is None else bool(c2c.isC2cEnabled),
            pcie=PcieFacts(
                generation=self._ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
                lanes=self._ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
                generation_of_slot=self._ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
                generation_of_gpu=self._ask("nvmlDeviceGetGpuMaxPcieLinkGeneration", handle),
                lanes_of_gpu=self._ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
            ),
            power_limit_watts=_convert_thousandths(self._ask("nvmlDeviceGetPowerManagementLimit", handle)),
            power_default_watts=_convert_thousandths(self._ask("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
            watts=_convert_thousandths(self._ask("nvmlDeviceGetPowerUsage", handle)),
            kelvin=_convert_celsius(self._ask("nvmlDeviceGetTemperature", handle, 0)),
            slowdown_kelvin=_convert_celsius(self._ask("nvmlDeviceGetTemperatureThreshold", handle, 1)),
            persistence=_convert_flag(self._ask("nvmlDeviceGetPersistenceMode", handle)),
            ecc=None if ecc is None else bool(ecc[0]),
            ecc_pending=None if ecc is None else bool(ecc[1]),
            mig=None if mig is None else bool(mig[0]),
            mig_slices=self._count_slices(handle) if mig is not None and mig[0] else None,
            compute_mode=_COMPUTE.get(self._ask("nvmlDeviceGetComputeMode", handle), ""),
            sm_hertz=_convert_megahertz(self._ask("nvmlDeviceGetClockInfo", handle, 1)),
            sm_most_hertz=_convert_megahertz(self._ask("nvmlDeviceGetMaxClockInfo", handle, 1)),
            sm_set_hertz=_convert_megahertz(self._ask("nvmlDeviceGetApplicationsClock", handle, 1)),
            memory_hertz=_convert_megahertz(self._ask("nvmlDeviceGetClockInfo", handle, 2)),
            memory_most_hertz=_convert_megahertz(self._ask("nvmlDeviceGetMaxClockInfo", handle, 2)),
            slowdowns=None if bits is None else tuple(word for bit, word in self._reasons.items() if bits & bit),
            lifetime_uncorrected=self._ask("nvmlDeviceGetTotalEccErrors", handle, 1, 1),
            rows=None if rows is None else RowsFacts(int(rows[0]), int(rows[1]), bool(rows[2]), bool(rows[3])),
            pages_pending=_convert_flag(pages),
            recovery=self._read_recovery(handle),
            processes=None if processes is None else tuple(sorted(process.pid for process in processes)),
            busy=None if rates is None else rates.gpu / 100,
        )

    def _read_links(self, handle: Any) -> tuple[LinkFacts, ...]:
        found = []
        for link in range(self._library.NVML_NVLINK_MAX_LINKS):
            state = self._ask("nvmlDeviceGetNvLinkState", handle, link)
            if state is not None:
                found.append(LinkFacts(link, bool(state), self._end(handle, link) if state else ""))
        return tuple(found)

    def _end(self, handle: Any, link: int) -> str:
        nvml = self._library
        kind = self._ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            return SWITCH
        pci = self._ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        return "" if pci is None else _decode_text(pci.busId).upper()

    def _read_fabric(self, handle: Any) -> str:
        make = getattr(self._library, "c_nvmlGpuFabricInfo_t", None)
        if make is None:
            return ""
        info = make()
        if self._ask("nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(info)) is None:
            return ""
        if info.state == 3 and info.status != self._library.NVML_SUCCESS:
            return "failed"
        return _FABRIC.get(int(info.state), "")

    def _read_recovery(self, handle: Any) -> str:
        field = getattr(self._library, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
        answers = None if field is None else self._ask("nvmlDeviceGetFieldValues", handle, [(field, 0)])
        if not answers or answers[0].nvmlReturn != self._library.NVML_SUCCESS:
            return ""
        return _RECOVERY.get(int(answers[0].value.uiVal), "")

    def _count_slices(self, handle: Any) -> int | None:
        most = self._ask("nvmlDeviceGetMaxMigDeviceCount", handle)
        if most is None:
            return None
        slices = (self._ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index) for index in range(most))
        return sum(one is not None for one in slices)

    def _read_pair(self, a: int, b: int, first: Any, second: Any) -> PairFacts:
        level = self._ask("nvmlDeviceGetTopologyCommonAncestor", first, second)
        statuses = {
            kind: self._ask("nvmlDeviceGetP2PStatus", first, second, index) for kind, index in _P2P_KINDS.items()
        }
        return PairFacts(
            a,
            b,
            "" if level is None else self._distances[level].name,
            {kind: _P2P.get(status, "unknown") for kind, status in statuses.items() if status is not None},
        )

    def _ask(self, name: str, *args: Any) -> Any:
        """The answer to a question that an older pynvml may not have; None without one."""
        query = getattr(self._library, name, None)
        return None if query is None else self._tell(query, *args)

    def _tell(self, query: Callable[..., Any], *args: Any) -> Any:
        # A diagnosis goes on whatever one question comes to: a GPU that is lost answers none.
        try:
            return query(*args)
        except self._library.NVMLError:
            return None


def _convert_flag(number: int | None) -> bool | None:
    return None if number is None else bool(number)


def _convert_celsius(celsius: float | None) -> float | None:
    return None if celsius is None else celsius + _KELVIN


def _convert_thousandths(number: float | None) -> float | None:
    return None if number is None else number / 1e3


def _convert_megahertz(number: float | None) -> float | None:
    return None if number is None else number * 1e6


def _decode_text(raw: Any) -> str:
    if raw is None:
        return ""
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)
