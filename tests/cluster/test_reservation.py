"""What a run asks Ray for, what it refuses to run on, and in which words."""

import itertools
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.features.cluster.admission import require_reachable, require_same_software
from pytest_gpuperf.features.cluster.connection import _describe_refusal
from pytest_gpuperf.features.cluster.failures import ClusterError
from pytest_gpuperf.features.cluster.machines import find_difference, merge_machines
from pytest_gpuperf.features.cluster.member import Member
from pytest_gpuperf.features.cluster.membership import _describe_unusable
from pytest_gpuperf.features.cluster.node_host import NodeHost, can_import, fabric
from pytest_gpuperf.features.cluster.reservation import RayNode, Reservation, make_reservation
from pytest_gpuperf.features.cluster.wire import NodeFacts, count_bytes, pack, pack_endings, unpack, unpack_endings
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.hardware.site import Site, join_site
from pytest_gpuperf.ranks.channel import Parcel
from pytest_gpuperf.ranks.endings import Answered, Died
from pytest_gpuperf.ranks.spec import PoolSpec
from tests.fake_gpus import machine_of
from tests.whole_run import run_pytest


def nodes(*gpus: int, cpus: int = 4) -> list[RayNode]:
    names = "abcdefgh"
    return [RayNode(str(index), f"gpu-{names[index]}", "10.0.0.1", cpus, count) for index, count in enumerate(gpus)]


@pytest.mark.parametrize(
    ("gpus", "wanted", "bundles"),
    [
        ((8, 8), 16, [8, 8]),
        ((8, 8), None, [8, 8]),
        ((8, 8), 4, [4]),
        ((8, 8), 12, [8, 4]),
        ((2, 0, 8), 10, [8, 2]),
    ],
)
def test_gpus_are_taken_of_as_few_nodes_as_have_them(
    gpus: tuple[int, ...], wanted: int | None, bundles: list[int]
) -> None:
    assert [bundle["GPU"] for bundle in make_reservation(nodes(*gpus), wanted).bundles] == bundles


def test_without_gpus_all_nodes_with_a_cpu_are_taken() -> None:
    assert make_reservation([*nodes(0, 0), *nodes(0, cpus=0)], 0) == Reservation(({"CPU": 1.0},) * 2, gpus=False)


@pytest.mark.parametrize(
    ("found", "wanted", "message"),
    [
        (nodes(8, 4), 16, "--gpus 16: the cluster has 12: gpu-a has 8 GPUs and 4 CPUs, gpu-b has 4 GPUs and 4 CPUs"),
        (nodes(0), 2, "the cluster has no GPU for Ray (gpu-a has 0 GPUs and 4 CPUs): pass --gpus 0 to run ranks with"),
        (nodes(0), None, "the cluster has no GPU for Ray"),
        (nodes(8, cpus=0), 0, "no node of the cluster has a CPU for Ray: gpu-a has 8 GPUs and 0 CPUs"),
    ],
)
def test_what_the_nodes_do_not_have_is_said_with_what_they_have(
    found: list[RayNode], wanted: int | None, message: str
) -> None:
    with pytest.raises(ClusterError) as caught:
        make_reservation(found, wanted)
    assert str(caught.value).startswith(message)


def test_a_reservation_is_told_in_words() -> None:
    assert str(make_reservation(nodes(8, 8), 12)) == "1 node with 8 GPUs and 1 node with 4 GPUs"
    assert str(make_reservation(nodes(0, 0), 0)) == "2 nodes with a CPU"


def test_a_node_at_its_own_loopback_is_refused_among_others() -> None:
    require_reachable({"a": "10.0.0.1", "b": "10.0.0.2"})
    require_reachable({"a": "127.0.0.1", "b": "127.0.0.1"})  # nodes of one machine
    with pytest.raises(
        ClusterError, match=r"^node b is in the cluster as 127\.0\.1\.1, which .* `ray start --node-ip-address=ADDRESS`"
    ):
        require_reachable({"a": "10.0.0.1", "b": "127.0.1.1"})


def member(name: str, **software: str) -> Member:
    facts = NodeFacts(software, Machine((), None, False), "tcp")
    return Member(name, "10.0.0.1", 0, 1, None, facts, 1.0)


def test_nodes_with_other_versions_are_refused_by_name() -> None:
    require_same_software([member("a", python="3.11.7", torch="2.13.0"), member("b", python="3.11.7", torch="2.13.0")])
    with pytest.raises(ClusterError, match=r"^node b has torch 2\.12\.0, and node a has 2\.13\.0: what one pickles"):
        require_same_software([member("a", torch="2.13.0"), member("b", torch="2.12.0")])
    with pytest.raises(ClusterError, match=r"^node b has torch \(none\), and node a has 2\.13\.0"):
        require_same_software([member("a", torch="2.13.0"), member("b", torch="")])


def test_a_node_that_cannot_import_the_package_is_told_what_to_install() -> None:
    error = RuntimeError("...\nModuleNotFoundError: No module named 'pytest_gpuperf'")
    assert (
        _describe_unusable(error) == "a node of the cluster lacks pytest-gpuperf: install the same version on all nodes"
    )
    assert _describe_unusable(RuntimeError("x\nno disk")) == "a node of the cluster cannot host ranks: no disk"


def test_unlike_nodes_are_named_with_what_differs() -> None:
    eight = machine_of(8)
    assert find_difference({"a": eight, "b": eight}) is None
    said = find_difference({"a": eight, "b": machine_of(4)})
    assert said == "nodes a and b are unlike: GPUs' count 8 on a, 4 on b"
    other = replace(eight, gpus=tuple(replace(gpu, name="NVIDIA B300") for gpu in eight.gpus))
    assert "GPUs NVIDIA " in str(find_difference({"a": eight, "c": other}))


def test_nodes_on_unlike_networks_are_named() -> None:
    eight = machine_of(8)
    said = find_difference({"a": replace(eight, fabric="ib"), "b": replace(eight, fabric="roce")})
    assert said == "nodes a and b are unlike: network ib on a, roce on b"


def joined_by(fabric: str, *machines: Machine) -> list[Machine]:
    return [replace(machine, fabric=fabric) for machine in machines]


def test_the_key_of_a_cluster_tells_its_nodes_and_their_network() -> None:
    eight = replace(machine_of(8), fabric="ib")
    both = merge_machines({"a": eight, "b": eight})
    assert both.key == f"2n-{eight.key}-ib" == "2n-8x-nvidia-h200-nv18-ib"
    assert len(both.gpus) == 16
    assert merge_machines({"a": eight}) is eight


def test_the_key_of_unlike_nodes_lists_each_kind_in_any_order() -> None:
    one = machine_of(1)
    other = replace(one, gpus=tuple(replace(gpu, name="NVIDIA B300") for gpu in one.gpus))
    unlike = {
        "1n-1x-nvidia-b300-ib+1n-1x-nvidia-h200-ib": joined_by("ib", one, other),
        "1n-1x-nvidia-b300-ib+2n-1x-nvidia-h200-ib": joined_by("ib", one, other, one),
        "1n-4x-nvidia-h200-nv18-ib+1n-8x-nvidia-h200-nv18-ib": joined_by("ib", machine_of(8), machine_of(4)),
        "1n-1x-nvidia-h200-ib+1n-1x-nvidia-h200-tcp": joined_by("ib", one) + joined_by("tcp", one),
        "1n-1x-nvidia-h200-ib+1n-4x-nvidia-h200-nv18-ib": joined_by("ib", one, machine_of(4)),
    }
    for key, machines in unlike.items():
        found = [
            merge_machines({str(number): machine for number, machine in enumerate(order)})
            for order in itertools.permutations(machines)
        ]
        assert {one.key for one in found} == {key}
        assert all(one.match == found[0].match for one in found)


def test_a_clusters_memory_is_as_fast_as_its_slowest_nodes() -> None:
    one, other = (replace(machine_of(2), memory_told=rate, host_told=5e10) for rate in (4.8e12, 4.0e12))
    both = merge_machines({"a": one, "b": other})
    assert (both.memory_rate, both.host_rate) == (4.0e12, 5e10)
    untold = merge_machines({"a": one, "b": machine_of(2)})
    assert (untold.memory_rate, untold.host_rate) == (None, None)


def test_facts_of_nodes_stand_beside_what_they_have_in_common() -> None:
    one, other = (
        Site(name, gpus, {"driver": driver, "kernel": "6.1", **more})
        for name, gpus, driver, more in (("host-a", "1", "570", {"ecc": "on"}), ("host-b", "2", "575", {}))
    )
    site = join_site({"gpu-a": one, "gpu-b": other}, "12")
    assert site == Site(
        "gpu-a, gpu-b",
        "12",
        {"driver": "570, 575", "kernel": "6.1"},
        {
            "gpu-a": {"host": "host-a", "gpus": "1", "driver": "570", "kernel": "6.1", "ecc": "on"},
            "gpu-b": {"host": "host-b", "gpus": "2", "driver": "575", "kernel": "6.1"},
        },
    )


def test_large_parts_travel_and_arrive_in_memory_that_can_be_written() -> None:
    parcel = Parcel(b"stream", [bytearray(b"part"), pickle.PickleBuffer(b"more")])
    assert count_bytes(parcel) == 14
    there = unpack(pack(parcel))
    assert (bytes(there.stream), [bytes(memoryview(part)) for part in there.buffers]) == (b"stream", [b"part", b"more"])
    assert all(isinstance(part, bytearray) for part in (there.stream, *there.buffers))


def test_moments_of_a_node_are_told_by_the_controllers_clock() -> None:
    endings = pack_endings({0: Answered(Parcel(b"x")), 1: Died(105.0, 1)})
    there: dict[int, Any] = unpack_endings(endings, offset=100.0)
    assert there[1].at == 5.0
    assert bytes(there[0].payload.stream) == b"x"


def test_what_lies_in_the_controllers_folder_is_no_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lies_here.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert can_import("lies_here", [])
    assert not can_import("lies_here", [str(tmp_path)])
    assert can_import("torch", [str(tmp_path)])
    assert str(tmp_path) in sys.path


def test_a_rank_has_its_nodes_own_identity_unless_its_test_sets_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_HOSTID", "gpu-b")
    monkeypatch.setenv("PATH", "/node/bin")
    host: Any = object.__new__(NodeHost)
    host._interface, host._variables = "eth0", {}
    run = {"NCCL_HOSTID": "gpu-a", "PATH": "/controller/bin", "NCCL_DEBUG": "INFO"}
    own = host._make_environ(PoolSpec(2), run)
    assert (own["NCCL_HOSTID"], own["PATH"], own["NCCL_DEBUG"]) == ("gpu-b", "/node/bin", "INFO")
    assert own["NCCL_SOCKET_IFNAME"] == "eth0"
    of_test = host._make_environ(PoolSpec(2, environ=(("NCCL_HOSTID", "pod-{rank}"),)), run)
    assert of_test["NCCL_HOSTID"] == "pod-{rank}"


@pytest.mark.parametrize(("layers", "label"), [([], "tcp"), (["Ethernet"], "roce"), (["Ethernet", "InfiniBand"], "ib")])
def test_the_network_is_labelled_by_its_adapters(tmp_path: Path, layers: list[str], label: str) -> None:
    for index, layer in enumerate(layers):
        port = tmp_path / f"mlx5_{index}" / "ports" / "1"
        port.mkdir(parents=True)
        (port / "link_layer").write_text(f"{layer}\n")
    assert fabric(tmp_path) == label


def refusal(pytester: pytest.Pytester, *options: str) -> str:
    result = pytester.runpytest_inprocess(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line.startswith("ERROR: ")]
    return line.removeprefix("ERROR: ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--cluster=auto", "-n2"),
            "--cluster gives one process all nodes, and xdist's workers would each want them: ",
        ),
        (
            ("--cluster=auto", f"--against-python={sys.executable}"),
            "--against-python runs ranks with another interpreter, and Ray starts those of its nodes with its own: ",
        ),
        (
            ("--cluster=auto", "--gpus=1", "--explain"),
            "--explain races runs with other variables on one machine, and the nodes of a cluster have their own: ",
        ),
        (("--allow-unlike-nodes",), "--allow-unlike-nodes is about the nodes of a cluster: add --cluster"),
        (("--cluster=ray://head:1",), "--cluster takes the head's host:port or 'auto', got 'ray://head:1'"),
        (("--cluster=127.0.0.1:1",), "--cluster 127.0.0.1:1: no Ray cluster answers at 127.0.0.1:1 ([Errno 111] "),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    pytester: pytest.Pytester, options: tuple[str, ...], message: str
) -> None:
    assert refusal(pytester, *options).startswith(message)


def test_without_ray_the_extra_is_named(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert refusal(pytester, "--cluster=auto") == (
        "--cluster needs Ray: install pytest-gpuperf[cluster], the same version on all nodes"
    )


def test_no_run_imports_ray_that_has_no_cluster(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("import sys\ndef test_it():\n    assert 'ray' not in sys.modules\n")
    assert run_pytest(tmp_path).outcomes == {"test_it": "PASSED"}


def test_a_cluster_that_does_not_let_one_in_is_told_from_one_that_is_not_there() -> None:
    said = _describe_refusal("head:6379", ConnectionError("Failed to connect"), listens=True)
    assert said.startswith("--cluster head:6379: something listens there, and this process cannot join it as a Ray ")
    assert "If the cluster wants a token, set RAY_AUTH_MODE=token and have its ~/.ray/auth_token here; " in said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            ConnectionError("Could not find any running\nRay instance."),
            "no Ray cluster is known on this machine (Could ",
        ),
        (RuntimeError("Version mismatch: Python: 3.12"), "this process and the cluster differ: Version mismatch: "),
    ],
)
def test_a_cluster_that_cannot_be_joined_says_why(error: Exception, said: str) -> None:
    assert _describe_refusal("auto", error).startswith(f"--cluster auto: {said}")
