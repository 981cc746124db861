"""``Devices`` for tests that need no library: GPUs that are idle and tell next to nothing of themselves."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations

from pytest_gpuperf.hardware.device import (
    SWITCH,
    Counters,
    Distance,
    Gpu,
    HardwareError,
    Health,
    Listener,
    Observation,
    Pcie,
    Xid,
)
from pytest_gpuperf.hardware.inspection import GpuFacts, Inspection, LinkFacts, PairFacts

FREE_BYTES = 100 * 2**30


class Silence:
    """Hears nothing."""

    def close(self) -> tuple[Xid, ...]:
        return ()


class FakeDevices:
    """GPUs that are joined by a switch; they use no memory unless a test says how much."""

    def __init__(
        self,
        gpus: Sequence[Gpu] = (),
        *,
        used: Callable[[str], int] = lambda uuid: 0,
        counters: Callable[[str], Counters] = lambda uuid: Counters(None, None, None),
    ) -> None:
        self.gpus = tuple(gpus)
        self._used = used
        self._counters = counters

    @contextmanager
    def session(self) -> Iterator[bool]:
        yield True

    def make_gone_error(self, unanswered: str) -> HardwareError:
        return HardwareError(f"nobody says {unanswered}")

    def driver_version(self) -> str | None:
        return "570.86"

    def visible(self, environ: Mapping[str, str]) -> tuple[Gpu, ...]:
        return self.gpus

    def used_memory(self, uuid: str) -> int:
        return self._used(uuid)

    def observe(self, uuid: str, *, links: bool = True) -> Observation:
        return Observation(uuid, None, None, None, None, None, FREE_BYTES, None, None)

    def counters(self, uuid: str) -> Counters:
        return self._counters(uuid)

    def health(self, uuid: str) -> Health:
        return Health(uuid, {}, None, None, None)

    def listen(self, uuids: Sequence[str]) -> Listener:
        return Silence()

    def link_ends(self, uuid: str) -> tuple[str, ...]:
        return next((SWITCH,) * gpu.nvlinks for gpu in self.gpus if gpu.uuid == uuid)

    def distance(self, a: str, b: str) -> Distance | None:
        return None

    def pcie(self, uuid: str) -> Pcie | None:
        return None

    def cores(self, uuid: str) -> frozenset[int]:
        return frozenset()

    def memory_rate(self, uuid: str) -> float | None:
        return None

    def pcie_traffic(self) -> dict[str, float]:
        return {}

    def inspect(self) -> Inspection:
        return Inspection(
            "570.86",
            gpus=tuple(
                GpuFacts(
                    gpu.uuid,
                    gpu.name,
                    gpu.pci_bus_id,
                    links=tuple(LinkFacts(number, active=True, end=SWITCH) for number in range(gpu.nvlinks)),
                )
                for gpu in self.gpus
            ),
            pairs=tuple(PairFacts(*pair, "SYS") for pair in combinations(range(len(self.gpus)), 2)),
        )
