"""Everything about a machine's GPUs that a diagnosis looks at, as the vendor's library reports it, in SI units.

Each value may be unknown (None, or empty): an old driver, a container or a virtual machine does not answer everything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_gpuperf.hardware.device import SWITCH

_OPTIONAL = {"optional": True}  # for those who read these values from a file that lacks them


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """One NVLink of a GPU."""

    number: int
    active: bool
    end: str = field(default="", metadata=_OPTIONAL)
    """SWITCH, or the PCI address of the device at the other end; empty if unknown."""


@dataclass(frozen=True, slots=True)
class PcieFacts:
    """A GPU's PCIe link, now and at most."""

    generation: int | None = field(default=None, metadata=_OPTIONAL)
    """Now. An idle GPU lowers it to save power."""
    lanes: int | None = field(default=None, metadata=_OPTIONAL)
    """Now; never lowered to save power."""
    generation_of_slot: int | None = field(default=None, metadata=_OPTIONAL)
    """The most that GPU and slot agree on."""
    generation_of_gpu: int | None = field(default=None, metadata=_OPTIONAL)
    """The most that the GPU supports."""
    lanes_of_gpu: int | None = field(default=None, metadata=_OPTIONAL)


@dataclass(frozen=True, slots=True)
class RowsFacts:
    """Rows of a GPU's memory that spare rows replace (GPUs since A100)."""

    corrected: int
    uncorrected: int
    pending: bool
    """A remapping waits for a reset of the GPU."""
    failed: bool
    """No spare row was left."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU as the diagnosis sees it."""

    uuid: str
    name: str = field(default="", metadata=_OPTIONAL)
    pci_bus_id: str = field(default="", metadata=_OPTIONAL)
    compute_capability: tuple[int, ...] = field(default=(), metadata=_OPTIONAL)
    memory_bytes: int | None = field(default=None, metadata=_OPTIONAL)
    used_bytes: int | None = field(default=None, metadata=_OPTIONAL)
    vbios: str = field(default="", metadata=_OPTIONAL)
    links: tuple[LinkFacts, ...] = field(default=(), metadata=_OPTIONAL)
    fabric: str = field(default="", metadata=_OPTIONAL)
    """State of the registration with the NVLink fabric: completed, in progress, not started, failed, not supported."""
    c2c: bool | None = field(default=None, metadata=_OPTIONAL)
    """Whether NVLink-C2C joins it to the CPU."""
    pcie: PcieFacts = field(default_factory=PcieFacts, metadata=_OPTIONAL)
    cores: tuple[int, ...] = field(default=(), metadata=_OPTIONAL)
    """CPU cores of its NUMA node."""
    power_limit_watts: float | None = field(default=None, metadata=_OPTIONAL)
    power_default_watts: float | None = field(default=None, metadata=_OPTIONAL)
    watts: float | None = field(default=None, metadata=_OPTIONAL)
    kelvin: float | None = field(default=None, metadata=_OPTIONAL)
    slowdown_kelvin: float | None = field(default=None, metadata=_OPTIONAL)
    """From this temperature on the hardware lowers the clocks."""
    persistence: bool | None = field(default=None, metadata=_OPTIONAL)
    ecc: bool | None = field(default=None, metadata=_OPTIONAL)
    ecc_pending: bool | None = field(default=None, metadata=_OPTIONAL)
    """ECC after the next reset."""
    mig: bool | None = field(default=None, metadata=_OPTIONAL)
    mig_slices: int | None = field(default=None, metadata=_OPTIONAL)
    compute_mode: str = field(default="", metadata=_OPTIONAL)
    """default, exclusive process, exclusive thread, prohibited."""
    sm_hertz: float | None = field(default=None, metadata=_OPTIONAL)
    sm_most_hertz: float | None = field(default=None, metadata=_OPTIONAL)
    sm_set_hertz: float | None = field(default=None, metadata=_OPTIONAL)
    """The application clock, which an administrator may have set."""
    memory_hertz: float | None = field(default=None, metadata=_OPTIONAL)
    memory_most_hertz: float | None = field(default=None, metadata=_OPTIONAL)
    slowdowns: tuple[str, ...] | None = field(default=None, metadata=_OPTIONAL)
    """Why clocks are held back now, in the words of ``device.ClockReason``; empty if nothing holds them back."""
    errors: Mapping[str, int] = field(default_factory=dict, metadata=_OPTIONAL)
    """Counts since the driver was loaded, by the names of ``device.Health``; what it does not count is missing."""
    lifetime_uncorrected: int | None = field(default=None, metadata=_OPTIONAL)
    """Uncorrected memory errors in the GPU's life."""
    rows: RowsFacts | None = field(default=None, metadata=_OPTIONAL)
    pages_pending: bool | None = field(default=None, metadata=_OPTIONAL)
    """Whether a memory page waits for its retirement (GPUs before A100)."""
    recovery: str = field(default="", metadata=_OPTIONAL)
    """What the driver asks for: none, reset, reboot, drain peers, drain and reset; empty if unknown."""
    processes: tuple[int, ...] | None = field(default=None, metadata=_OPTIONAL)
    """Process ids that compute on it, as the host of the driver counts them."""
    busy: float | None = field(default=None, metadata=_OPTIONAL)
    """Share of the last moment in which a kernel ran; copies alone are none."""
    problem: str = field(default="", metadata=_OPTIONAL)
    """Why the library could not describe it; empty if it could."""

    @property
    def active_links(self) -> int:
        """How many NVLinks are active."""
        return sum(link.active for link in self.links)

    @property
    def switched(self) -> bool:
        """Whether a switch is at the end of its active NVLinks."""
        return any(link.active and link.end == SWITCH for link in self.links)


@dataclass(frozen=True, slots=True)
class PairFacts:
    """How one GPU reaches another, by their places in ``Inspection.gpus``."""

    first: int
    second: int
    distance: str = field(default="", metadata=_OPTIONAL)
    """PIX, PXB, PHB, NODE or SYS; empty if unknown."""
    p2p: Mapping[str, str] = field(default_factory=dict, metadata=_OPTIONAL)
    """Status of direct access by kind (read, write, atomics): ok, or why not."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """All GPUs of the machine, whatever CUDA shows of them, and the driver."""

    driver: str = field(default="", metadata=_OPTIONAL)
    cuda: str = field(default="", metadata=_OPTIONAL)
    """The newest CUDA that the driver supports, for example 13.0."""
    gpus: tuple[GpuFacts, ...] = field(default=(), metadata=_OPTIONAL)
    pairs: tuple[PairFacts, ...] = field(default=(), metadata=_OPTIONAL)
    problem: str = field(default="", metadata=_OPTIONAL)
    """Why the library did not answer; empty if it did, or if there is none."""
    present: bool = field(default=True, metadata=_OPTIONAL)
    """Whether the machine has library and driver."""

    def __post_init__(self) -> None:
        """Refuses pairs of GPUs that are not there, which only a file that somebody edited has."""
        named = {index for pair in self.pairs for index in (pair.first, pair.second)}
        if named - set(range(len(self.gpus))):
            raise ValueError(f"pairs name GPUs {sorted(named)}, expected some of {len(self.gpus)} GPUs")
