"""Machines whose GPUs exist only in a test: for the plugin they are there, and ranks run on gloo all the same."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from pytest_gpuperf.hardware import machine
from pytest_gpuperf.hardware.gpus import Gpu
from pytest_gpuperf.hardware.linkage import Linkage
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.leases import leasing
from pytest_gpuperf.ranks.spec import PoolSpec
from pytest_gpuperf.run import current_ranks
from pytest_gpuperf.run.current_ranks import CurrentRanks

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
        nvlink_version=4,
        power_limit_watts=watts,
    )


def link(count: int) -> Linkage:
    """How so many of them are linked."""
    return Linkage("nvlink", "nv18", 450e9) if count > 1 else Linkage("none", "", None)


def machine_of(count: int, *, multicast: bool = False, watts: float = 700.0) -> Machine:
    """A machine with so many of them in use."""
    return Machine(tuple(gpu(index, watts) for index in range(count)), link(count), multicast, "570.86")


def install(patch: pytest.MonkeyPatch, visible: int = 8) -> None:
    """Lets the plugin find so many GPUs, and lets ranks run without them."""
    limit(patch, visible)
    patch.setattr(machine, "linkage", lambda gpus: link(len(gpus)))
    patch.setattr(machine, "driver_version", lambda: "570.86")
    patch.setattr(leasing, "used_memory", lambda uuid: 0)
    patch.setattr(current_ranks, "Watch", lambda gpus: nullcontext(SimpleNamespace(seen=(), xids=())))
    patch.setattr(CurrentRanks, "_control", lambda self, size: {})
    without_memory(patch)
    patch.setattr(CurrentRanks, "_spec", lambda self, size: PoolSpec(size, (), self.current.marker.env))


def limit(patch: pytest.MonkeyPatch, visible: int = 8, watts: float = 700.0) -> None:
    """Lets the plugin find so many GPUs with this power limit."""
    patch.setattr(machine, "visible_gpus", lambda environ: tuple(gpu(index, watts) for index in range(visible)))


def without_memory(patch: pytest.MonkeyPatch) -> None:
    """The GPUs have no memory that a lease could wait for."""
    patch.setattr(leasing, "used_memory", lambda uuid: 0)
    patch.setattr(leasing, "nvml_session", lambda nvml: nullcontext())


def without_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that run no program need no ranks: none are started, though GPUs are in use."""
    monkeypatch.setattr("pytest_gpuperf.ranks.pools.Pools.warm_up", lambda self: None)
    monkeypatch.setattr(
        "pytest_gpuperf.run.current_ranks.CurrentRanks._pool", lambda self, size: SimpleNamespace(pids=())
    )
    monkeypatch.setattr(
        "pytest_gpuperf.run.current_ranks.CurrentRanks._software", lambda self, size: {"torch": "2.13.0"}
    )
    monkeypatch.setattr("pytest_gpuperf.run.current_ranks.CurrentRanks._control", lambda self, size: {})
