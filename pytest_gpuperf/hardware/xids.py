"""The errors that the driver reports of GPUs while somebody listens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_gpuperf.hardware.nvml import Nvml, if_supported


@dataclass(frozen=True, slots=True)
class Xid:
    """One report of the driver; NVIDIA's XID error catalogue says what the numbers mean."""

    uuid: str
    """The GPU's."""
    number: int


class XidListener:
    """Keeps the reports that come after it was made; none where the machine lets nobody listen."""

    def __init__(self, uuids: Sequence[str], nvml: Nvml) -> None:
        """Listens, in the caller's NVML session, to the GPUs of these UUIDs."""
        self._nvml = nvml
        # A set of its own for each GPU: an event's handle need not be the one that the GPU was asked for by.
        self._sets: dict[str, Any] = {}
        for uuid in uuids:
            events = if_supported(nvml, nvml.nvmlEventSetCreate)
            if events is None:
                continue
            self._sets[uuid] = events
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            if_supported(nvml, nvml.nvmlDeviceRegisterEvents, handle, nvml.nvmlEventTypeXidCriticalError, events)

    def close(self) -> tuple[Xid, ...]:
        """Ends the listening; what was reported meanwhile."""
        heard: list[Xid] = []
        for uuid, events in self._sets.items():
            while (number := self._next(events)) is not None:
                heard.append(Xid(uuid, number))
            self._nvml.nvmlEventSetFree(events)
        self._sets.clear()
        return tuple(heard)

    def _next(self, events: Any) -> int | None:
        try:
            event = if_supported(self._nvml, self._nvml.nvmlEventSetWait_v2, events, 0)
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_TIMEOUT:  # nothing more was reported
                return None
            raise
        return None if event is None else int(event.eventData)
