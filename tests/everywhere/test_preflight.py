"""What is wrong with nodes is said with the node and the cure, before Ray starts."""

from __future__ import annotations

import json
import re

import pytest

from pytest_gpuperf.features.everywhere import facts as facts_module
from pytest_gpuperf.features.everywhere.facts import NodeFacts, gather, resolve
from pytest_gpuperf.features.everywhere.preflight import Node, Unreached, format_summary, list_findings
from tests.everywhere.examples import VERSIONS, facts

ONE = Node("gpu1", facts())


def two(clock: float = 0.0, resolves: tuple[str, ...] = (), **changes: object) -> list[Node]:
    return [ONE, Node("gpu2", facts("gpu2", "10.0.0.2", **changes), clock, resolves)]


def test_nodes_that_are_alike_have_no_findings() -> None:
    assert list_findings(two()) == []
    assert format_summary(two(), "Slurm") == "2 nodes (gpu1, gpu2) by Slurm over eth0, each with 8 x NVIDIA H200"


@pytest.mark.parametrize(
    ("nodes", "blocks", "said"),
    [
        (
            two(versions={**VERSIONS, "torch": "2.12.0"}),
            True,
            "node gpu2: it has torch 2.12.0, and gpu1 has 2.13.0: install the same version on all nodes",
        ),
        (
            two(versions={**VERSIONS, "ray": ""}),
            True,
            r"node gpu2: it has ray \(none\), and gpu1 has 2.60.0: install pytest-gpuperf\[cluster\] there",
        ),
        (two(versions={**VERSIONS, "NCCL": "2.28.0"}), False, "node gpu2: it has NCCL 2.28.0, and gpu1 has 2.29.3"),
        (two(versions={**VERSIONS, "Python": "3.12.1"}), True, "node gpu2: it has Python 3.12.1, and gpu1 has 3.11.7"),
        (
            two(clock=300.0),
            False,
            r"node gpu2: its clock is 300.0 s ahead of that of gpu1: start its time service \(`timedatectl",
        ),
        (two(clock=-300.0), False, "node gpu2: its clock is 300.0 s behind that of gpu1"),
        (
            two(shared_memory=64 * 2**20),
            True,
            "node gpu2: /dev/shm has 64 MiB free; Ray and NCCL need 256 MiB: .*`--shm-size=8g`",
        ),
        (
            two(cores=1),
            False,
            "node gpu2: this process may use 1 of 64 cores: give the task all of them: `srun --cpus-per-task=N`",
        ),
        (
            two(wanted_interfaces={"NCCL_SOCKET_IFNAME": "ib"}),
            True,
            "node gpu2: NCCL_SOCKET_IFNAME is ib, and its interfaces are lo, eth0: unset NCCL_SOCKET_IFNAME, so that ",
        ),
        (two(gpus=("NVIDIA H200",) * 7), False, "node gpu2: it has 7 x NVIDIA H200, and gpu1 has 8 x NVIDIA H200: "),
        (two(gpus=()), False, "node gpu2: it has no GPU, and gpu1 has 8 x NVIDIA H200: "),
        (
            two(mtu=1500),
            False,
            r"node gpu2: packets of eth0 have at most 1500 bytes \(MTU\), and those of gpu1 9001: "
            "run `ip link set eth0 mtu 9001` there",
        ),
        (
            two(own_name_is=()),
            False,
            "node gpu2: it cannot resolve its own name gpu2, .*: add `10.0.0.2 gpu2` to its /etc/hosts",
        ),
        (
            two(own_name_is=("127.0.1.1",)),
            False,
            "node gpu2: it resolves its own name gpu2 to 127.0.1.1, .* `10.0.0.2 gpu2`",
        ),
        (two(resolves=("10.0.0.1",)), False, "node gpu2: gpu1 resolves gpu2 to 10.0.0.1, which is node gpu1: "),
        (
            two(ray_address="10.0.0.9:6379"),
            True,
            "node gpu2: RAY_ADDRESS is 10.0.0.9:6379, so this is part of a running Ray cluster: .*`unset RAY_ADDRESS`",
        ),
        (
            [ONE, Node("gpu2", facts("gpu2", "fd00::2"))],
            True,
            "node gpu2: it reaches the first node from fd00::2, and Ray's nodes here need IPv4: give --head the IPv4",
        ),
        (
            [ONE, Node("gpu2", facts("gpu2", "127.0.0.1", own_name_is=("10.0.0.2",)))],
            True,
            "node gpu2: it reaches the first node from 127.0.0.1, which no other host reaches: give --head",
        ),
    ],
)
def test_a_finding_names_the_node_and_the_cure(nodes: list[Node], blocks: bool, said: str) -> None:
    (found,) = list_findings(nodes)
    assert found.blocks == blocks
    assert re.match(f"{'error' if blocks else 'warning'}: {said}", str(found)), str(found)


def test_nobody_else_looks_for_the_name_of_the_only_node() -> None:
    assert list_findings([Node("gpu1", facts(own_name_is=("127.0.1.1",)))]) == []


def test_what_most_nodes_have_is_right_and_what_blocks_comes_first() -> None:
    odd = {**VERSIONS, "torch": "2.12.0"}
    nodes = [Node("a", facts("a", "10.0.0.1", versions=odd, mtu=1500))]
    nodes += [Node(name, facts(name, f"10.0.0.{k}")) for k, name in enumerate("bc", 2)]
    assert [(one.node, one.blocks) for one in list_findings(nodes)] == [("a", True), ("a", False)]


def test_no_node_with_ray_is_said_of_all() -> None:
    without = {**VERSIONS, "ray": ""}
    nodes = [Node(name, facts(name, versions=without)) for name in "ab"]
    assert [str(one) for one in list_findings(nodes) if "ray" in one.what] == [
        f"error: node {name}: it has ray (none), and needs any version from 2.52: install pytest-gpuperf[cluster] there"
        for name in "ab"
    ]


def test_connections_that_fail_are_findings() -> None:
    (found,) = list_findings(two(), [Unreached("gpu2", "gpu1", "10.0.0.1", 6379, "no connection within 5 s")])
    assert str(found).startswith(
        "error: node gpu2: it cannot reach node gpu1 at 10.0.0.1 port 6379: no connection within 5 s: let the nodes"
    )


@pytest.mark.parametrize("wanted", ["eth", "^docker,lo", "=eth0", "ib,eth0"])
def test_interfaces_are_read_as_nccl_does(wanted: str) -> None:
    assert list_findings(two(wanted_interfaces={"NCCL_SOCKET_IFNAME": wanted})) == []


def test_the_facts_of_this_machine_travel_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts_module, "_list_gpus", lambda environ: ("NVIDIA H200",))
    here = gather("127.0.0.1", {"NCCL_SOCKET_IFNAME": "eth0", "RAY_ADDRESS": "a:1"})
    assert here.interface == "lo"
    assert here.mtu > 1000
    assert here.versions["torch"]
    assert here.wanted_interfaces == {"NCCL_SOCKET_IFNAME": "eth0"}
    assert here.ray_address == "a:1"
    assert NodeFacts.from_json(json.loads(json.dumps(here.make_json()))) == here


def test_a_name_without_an_address_resolves_to_nothing() -> None:
    assert resolve("no.such.name.invalid") == ()
    assert "127.0.0.1" in resolve("localhost")
