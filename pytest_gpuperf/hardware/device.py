"""What the project asks of a GPU vendor's library, and the values in which it answers, in SI units.

Another vendor's GPUs need one more module beside ``nvml``: a class that answers the questions of ``Devices``.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from pytest_gpuperf.hardware.inspection import Inspection

SWITCH: Final = "switch"
"""The end of a link that leads to a switch."""


class HardwareError(Exception):
    """The machine's GPUs cannot be described; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One whole GPU."""

    uuid: str
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    pci_bus_id: str
    """Spelled one way, so that two of them compare equal."""
    nvlinks: int
    """Active NVLinks."""
    power_limit_watts: float | None


class ClockReason(Enum):
    """Why a GPU's clocks are not higher."""

    IDLE = "idle"
    POWER_CAP = "power cap"
    HARDWARE_SLOWDOWN = "hardware slowdown"
    SOFTWARE_THERMAL_SLOWDOWN = "software thermal slowdown"
    HARDWARE_THERMAL_SLOWDOWN = "hardware thermal slowdown"
    POWER_BRAKE = "power brake"


@dataclass(frozen=True, slots=True)
class Observation:
    """One GPU at one moment, as far as it bears on a measurement.

    None: the GPU, or the machine it is virtual on, does not tell.
    """

    uuid: str
    reasons: frozenset[ClockReason] | None
    """Why clocks are not higher; empty if nothing holds them back."""
    sm_hertz: float | None
    nvlinks: int | None
    """Active NVLinks."""
    memory_errors: int | None
    """Uncorrected ECC errors since the driver was loaded."""
    processes: frozenset[int] | None
    """Process ids that compute on it, as the host of the driver counts them."""
    free_bytes: int
    kelvin: float | None
    watts: float | None


@dataclass(frozen=True, slots=True)
class Counters:
    """What one GPU has used and moved since its driver was loaded.

    None: the GPU, or the machine it is virtual on, does not count it.
    """

    joules: float | None
    """Energy that the whole board took."""
    nvlink_sent: int | None
    """Bytes of payload, over all its links."""
    nvlink_received: int | None


@dataclass(frozen=True, slots=True)
class Health:
    """A GPU's errors since its driver was loaded, and its temperature, power and clock now.

    None: the GPU, or the machine it is virtual on, does not tell.
    """

    uuid: str
    errors: Mapping[str, int | None]
    """Counts by name: NVLink's CRC errors, replays and recoveries, PCIe's replays, ECC's corrected and uncorrected."""
    kelvin: float | None
    watts: float | None
    sm_hertz: float | None

    def risen(self, before: "Health") -> dict[str, int]:
        """By how much each count has risen since; those that have not are left out."""
        rises: dict[str, int] = {}
        for name, now in self.errors.items():
            then = before.errors.get(name)
            if now is not None and then is not None and now > then:
                rises[name] = now - then
        return rises


@dataclass(frozen=True, slots=True)
class Xid:
    """One error that the driver reported; NVIDIA's XID error catalogue says what the numbers mean."""

    uuid: str
    """The GPU's."""
    number: int


class Distance(IntEnum):
    """How far apart two GPUs are on PCIe, nearest first, in the words of ``nvidia-smi topo -m``."""

    PIX = 0
    PXB = 1
    PHB = 2
    NODE = 3
    SYS = 4


class Pcie(NamedTuple):
    """The fastest PCIe link that a GPU and its slot allow."""

    generation: int
    lanes: int


class Listener(Protocol):
    """Keeps what the driver reports from the moment that it was made."""

    def close(self) -> tuple[Xid, ...]:
        """Ends the listening; returns what was reported meanwhile, and nothing when called again."""
        ...


class Devices(Protocol):
    """The GPUs of this machine, as their vendor's library describes them without a CUDA context.

    ``driver_version`` and ``visible`` also answer on a machine without library or driver. The caller asks all other
    questions about GPUs that ``visible`` has listed, and inside a session, where failures become HardwareError.
    """

    def session(self) -> AbstractContextManager[bool]:
        """Keeps the library open; yields whether this machine has it and a driver. Sessions may nest.

        Raises:
            HardwareError: The library is there and fails, when it opens or inside the session.
        """
        ...

    def make_gone_error(self, unanswered: str) -> HardwareError:
        """Makes the error for a library that has listed GPUs and is not there now.

        Args:
            unanswered: What it was to say, for example "how 2 GPUs are linked".
        """
        ...

    def driver_version(self) -> str | None:
        """The driver's version; None without a driver."""
        ...

    def visible(self, environ: Mapping[str, str]) -> tuple[Gpu, ...]:
        """Lists the GPUs that CUDA would show a process with this environment, in CUDA's order.

        A run uses no others, and worlds with more ranks are skipped.

        Raises:
            HardwareError: The environment names GPUs that ranks cannot run on, or reads otherwise in CUDA than it
                looks; or a GPU cannot be described.
        """
        ...

    def used_memory(self, uuid: str) -> int:
        """Bytes in use on a GPU, by all processes and the driver. A session is not necessary."""
        ...

    def observe(self, uuid: str, *, links: bool = True) -> Observation:
        """Looks at a GPU.

        Args:
            uuid: The GPU's.
            links: Whether its NVLinks are counted too, which takes a question for each.
        """
        ...

    def counters(self, uuid: str) -> Counters:
        """Reads a GPU's counters."""
        ...

    def health(self, uuid: str) -> Health:
        """Reads a GPU's error counts, temperature, power and clock."""
        ...

    def listen(self, uuids: Sequence[str]) -> Listener:
        """Listens to the driver's errors; hears none where the machine lets nobody listen."""
        ...

    def link_ends(self, uuid: str) -> tuple[str, ...]:
        """What each active NVLink of a GPU leads to: SWITCH, or the device at a ``Gpu.pci_bus_id``."""
        ...

    def distance(self, a: str, b: str) -> Distance | None:
        """How far apart two GPUs are on PCIe; None on a virtual machine that hides it."""
        ...

    def pcie(self, uuid: str) -> Pcie | None:
        """The GPU's PCIe link; None where the machine hides it, or the GPU reaches the host by another link."""
        ...

    def cores(self, uuid: str) -> frozenset[int]:
        """The CPU cores of the NUMA node that the GPU is at; empty if it does not tell."""
        ...

    def memory_rate(self, uuid: str) -> float | None:
        """Bytes/s that the GPU's own memory moves at most, reads and writes together; None if it does not tell."""
        ...

    def pcie_traffic(self) -> dict[str, float]:
        """Return the bytes/s that cross each GPU's PCIe link now, both ways, by UUID; without what cannot be read."""
        ...

    def inspect(self) -> "Inspection":
        """Describes the whole machine for a diagnosis; needs no session, and raises nothing."""
        ...
