"""The errors that the driver reports of GPUs while somebody listens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_gpuperf.hardware.nvml import Nvml


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
        self._sets = {uuid: events for uuid in uuids if (events := self._listen(uuid)) is not None}

    def close(self) -> tuple[Xid, ...]:
        """Ends the listening; what was reported meanwhile."""
        heard: list[Xid] = []
        for uuid, events in self._sets.items():
            while (number := self._next(events)) is not None:
                heard.append(Xid(uuid, number))
            self._nvml.nvmlEventSetFree(events)
        self._sets = {}
        return tuple(heard)

    def _listen(self, uuid: str) -> Any:
        # Whatever the reason why nobody may listen: a measurement does not fail for it.
        try:
            events = self._nvml.nvmlEventSetCreate()
        except self._nvml.NVMLError:
            return None
        try:
            handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            self._nvml.nvmlDeviceRegisterEvents(handle, self._nvml.nvmlEventTypeXidCriticalError, events)
        except self._nvml.NVMLError:
            self._nvml.nvmlEventSetFree(events)
            return None
        return events

    def _next(self, events: Any) -> int | None:
        try:
            return int(self._nvml.nvmlEventSetWait_v2(events, 0).eventData)
        except self._nvml.NVMLError:  # NVML_ERROR_TIMEOUT: nothing more was reported; or nobody tells any more
            return None
