"""The GPUs of all nodes are watched while ranks measure, and a gate that trips names the node."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuperf.features.cluster import node_host
from pytest_gpuperf.features.cluster.cluster import Cluster
from pytest_gpuperf.features.cluster.member import Member
from pytest_gpuperf.features.cluster.watching import ClusterWatch
from pytest_gpuperf.figures.conditions import Gate, Tripped
from pytest_gpuperf.hardware.device import HardwareError, Xid
from pytest_gpuperf.hardware.fitness import AtStart, make_conditions
from pytest_gpuperf.hardware.nvml import Nvml
from tests.cluster.members import member
from tests.hardware.fake_nvml import Device, FakeNvml

_HOT = 64  # hardware thermal slowdown, as NVML has it


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Device]:
    """The GPUs of all nodes, by their UUIDs."""
    found = {f"GPU-{index}": Device(f"GPU-{index}") for index in range(4)}
    monkeypatch.setattr(node_host, "find_devices", lambda: Nvml(FakeNvml(list(found.values()))))
    return found


def cluster(*members: Member) -> Cluster:
    made: Any = object.__new__(Cluster)
    made._nodes = SimpleNamespace(members=list(members), living=list(members))
    return made  # type: ignore[no-any-return]


def test_gpus_of_all_nodes_are_watched(devices: Mapping[str, Device]) -> None:
    nodes = cluster(member("gpu-a", [0, 1]), member("gpu-b", [2, 3]))
    with nodes.watch(["GPU-0", "GPU-2", "GPU-3"]) as watch:
        devices["GPU-3"].reasons = _HOT
        devices["GPU-2"].xids += [31]
    assert [seen.uuid for seen in watch.seen[:1]] == ["GPU-0"]
    assert {seen.uuid for seen in watch.seen} == {"GPU-0", "GPU-2", "GPU-3"}
    assert watch.xids == (Xid("GPU-2", 31),)
    found = make_conditions(watch.seen, AtStart({}, (), nodes.node_names), watch.xids)
    assert found.tripped == (
        Tripped("GPU-3", Gate.HARDWARE_THERMAL_SLOWDOWN, node="gpu-b"),
        Tripped("GPU-2", Gate.XID, 31, node="gpu-b"),
    )


def test_a_node_that_is_lost_meanwhile_leaves_the_others_watched(devices: Mapping[str, Device]) -> None:
    a, b = member("gpu-a", [0]), member("gpu-b", [1])
    with cluster(a, b).watch(["GPU-0", "GPU-1"]) as watch:
        b.lost = "node gpu-b is gone"
        devices["GPU-0"].reasons = _HOT
    assert {seen.uuid for seen in watch.seen} == {"GPU-0"}
    (tripped,) = make_conditions(watch.seen, AtStart({}, ())).tripped
    assert tripped.gate is Gate.HARDWARE_THERMAL_SLOWDOWN


def test_a_node_that_was_lost_before_is_not_asked(devices: Mapping[str, Device]) -> None:
    a, b = member("gpu-a", [0]), member("gpu-b", [1])
    b.lost = "node gpu-b is gone"
    with cluster(a, b).watch(["GPU-0", "GPU-1"]) as watch:
        pass
    assert {seen.uuid for seen in watch.seen} == {"GPU-0"}


def test_a_node_is_watched_from_the_beginning_of_each_block(devices: Mapping[str, Device]) -> None:
    a = member("gpu-a", [0])
    devices["GPU-0"].reasons = _HOT
    for expected in (True, False):
        with ClusterWatch([(a, ["GPU-0"])]) as watch:
            devices["GPU-0"].reasons = 0
        assert bool(make_conditions(watch.seen, AtStart({}, ())).tripped) is expected
    assert a.host.unwatch() == ((), ())


def test_a_library_that_fails_on_a_node_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = FakeNvml([Device("GPU-0")], lost="GPU-0")
    monkeypatch.setattr(node_host, "find_devices", lambda: Nvml(failing))
    with pytest.raises(HardwareError, match="could not describe a GPU"), ClusterWatch([(member("a", [0]), ["GPU-0"])]):
        pass
