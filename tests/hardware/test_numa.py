"""The host's NUMA nodes as the kernel lists them, and who is at which."""

from pathlib import Path

import pytest

from pytest_gpuperf.hardware import machine as machine_module
from pytest_gpuperf.hardware.inspection import GpuFacts, Inspection
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.hardware.numa import describe_nodes, find_node, parse_cores, read_nodes
from tests.fake_gpus import machine_of
from tests.hardware.fake_devices import FakeDevices

TWO = {"0": (0, 1), "1": (2, 3)}


def test_lists_of_cores() -> None:
    assert parse_cores("0-3,8,10-11") == (0, 1, 2, 3, 8, 10, 11)
    assert parse_cores("") == ()


def test_nodes_are_in_the_order_of_their_numbers_and_those_without_cores_are_left_out(tmp_path: Path) -> None:
    root = tmp_path / "devices/system/node"
    for name, cores in {"node10": "4-5", "node2": "2-3", "node0": "0-1", "node3": ""}.items():
        (root / name).mkdir(parents=True)
        (root / name / "cpulist").write_text(f"{cores}\n")
    (root / "node4").mkdir()  # the kernel says nothing of it
    (root / "has_cpu").write_text("0,2,10")
    assert list(read_nodes(tmp_path).items()) == [("0", (0, 1)), ("2", (2, 3)), ("10", (4, 5))]
    assert read_nodes(tmp_path / "nothing") == {}


def test_this_machine_has_a_node_for_each_of_its_cores() -> None:
    if not Path("/sys/devices/system/node/node0/cpulist").exists():
        pytest.skip("this kernel lists no NUMA nodes")
    assert 0 in read_nodes()["0"]


def test_a_gpu_near_cores_of_two_nodes_is_at_neither() -> None:
    assert find_node((0, 1), {"0": (0, 1, 2), "1": (3,)}) == "0"
    assert find_node((2, 3), {"0": (0, 1, 2), "1": (3,)}) == ""
    assert find_node((), {"0": (0, 1, 2)}) == ""


def test_a_process_is_at_every_node_of_its_cores() -> None:
    assert describe_nodes({1, 2}, TWO) == "0, 1"
    assert describe_nodes({3}, TWO) == "1"
    assert describe_nodes({7}, TWO) == describe_nodes((), TWO) == describe_nodes({0}, {}) == ""


@pytest.mark.parametrize(
    ("near", "allowed", "binds", "told"),
    [
        ([(0, 1), (2, 3)], {0, 1, 2, 3}, True, {"cpu numa nodes": "0, 1", "numa binding": "on"}),
        ([(0, 1), (2, 3)], {0, 1, 2, 3}, False, {"cpu numa nodes": "0, 1", "numa binding": "off"}),
        ([(0, 1), (2, 3)], {2, 3}, True, {"cpu numa nodes": "1", "numa binding": "off"}),  # no core near the first
        ([(0, 1), (2, 3)], {7}, True, {"numa binding": "off"}),
    ],
    ids=["bound", "not-bound", "elsewhere", "unknown-cores"],
)
def test_where_ranks_run_is_told(
    monkeypatch: pytest.MonkeyPatch,
    near: list[tuple[int, ...]],
    allowed: set[int],
    binds: bool,
    told: dict[str, str],
) -> None:
    monkeypatch.setattr(machine_module, "read_nodes", lambda: TWO)
    monkeypatch.setattr(FakeDevices, "cores", lambda self, uuid: frozenset(near[int(uuid[-1])]))
    assert machine_of(2).placement(frozenset(allowed), binds=binds) == told
    assert Machine((), None, False).placement(frozenset(allowed), binds=binds) == {}


def test_a_machine_tells_the_nodes_of_the_gpus_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Inspection(gpus=tuple(GpuFacts(f"GPU-{index}", cores=(2 * (index // 2),)) for index in range(4)))
    monkeypatch.setattr(machine_module, "read_nodes", lambda: TWO)
    monkeypatch.setattr(FakeDevices, "inspect", lambda self: told)
    assert machine_of(2).setup == {"gpu numa nodes": "0"}
    assert machine_of(3).setup == {"gpu numa nodes": "0, 0, 1"}
