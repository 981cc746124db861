"""Machines whose GPUs exist only in a test: for the plugin they are there, and ranks run on gloo all the same."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from pytest_gpuperf.hardware import machine
from pytest_gpuperf.hardware.device import Devices, Gpu
from pytest_gpuperf.hardware.linkage import Linkage
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.ranks.spec import PoolSpec
from pytest_gpuperf.run.current_ranks import CurrentRanks
from pytest_gpuperf.run.current_test import CurrentTest
from pytest_gpuperf.run.rank_supply import RankSupply
from tests.hardware.fake_devices import FakeDevices

GIB = 2**30


def gpu(index: int, watts: float = 700.0) -> Gpu:
    """One H200, with this power limit."""
    return Gpu(
        uuid=f"GPU-{index}",
        name="NVIDIA H200",
        memory_bytes=141 * GIB,
        compute_capability=(9, 0),
        pci_bus_id=f"00000000:{index:02X}:00.0",
        nvlinks=18,
        power_limit_watts=watts,
    )


def link(count: int) -> Linkage:
    """How so many of them are linked."""
    return Linkage("nvlink", "nv18", 450e9) if count > 1 else Linkage("none", "", None)


def machine_of(count: int, *, multicast: bool = False, watts: float = 700.0) -> Machine:
    """A machine with so many of them in use."""
    gpus = tuple(gpu(index, watts) for index in range(count))
    return Machine(gpus, link(count), multicast, "570.86", devices=FakeDevices(gpus))


def install(patch: pytest.MonkeyPatch, visible: int = 8) -> None:
    """Lets the plugin find so many GPUs, and lets ranks run without them."""
    limit(patch, visible)

    def without_gpus(supply: RankSupply, test: CurrentTest, size: int) -> PoolSpec:
        return PoolSpec(size, (), test.marker.env, timed=test.launch is not None)

    patch.setattr(RankSupply, "spec", without_gpus)


def limit(patch: pytest.MonkeyPatch, visible: int = 8, watts: float = 700.0) -> None:
    """Lets the plugin find so many GPUs with this power limit."""
    show(patch, [gpu(index, watts) for index in range(visible)])


def show(patch: pytest.MonkeyPatch, gpus: Sequence[Gpu]) -> None:
    """Lets the plugin find these GPUs."""
    use(patch, FakeDevices(gpus))


def use(patch: pytest.MonkeyPatch, devices: Devices) -> None:
    """Lets the plugin ask these devices about the machine."""
    patch.setattr(machine, "find_devices", lambda: devices)


def without_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that run no program need no ranks: none are started, though GPUs are in use."""
    monkeypatch.setattr("pytest_gpuperf.ranks.pools.Pools.warm_up", lambda self: None)
    monkeypatch.setattr(RankSupply, "get", lambda *_: SimpleNamespace(pids=()))
    monkeypatch.setattr(CurrentRanks, "_read_software", lambda self, size: {"torch": "2.13.0"})
