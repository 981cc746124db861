"""Collectives between nodes: what published clusters reach is plausible, what a broken network has is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpuperf.features.cluster.machines import merge_machines
from pytest_gpuperf.features.day_zero.model import table
from pytest_gpuperf.features.day_zero.model.between_nodes import BetweenNodes
from pytest_gpuperf.features.day_zero.model.expecting import form_opinion, predict_scaled
from pytest_gpuperf.features.day_zero.model.rates import Rates
from pytest_gpuperf.figures.bandwidth import bus_bandwidth
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.figures.work import Exchange, Work
from pytest_gpuperf.hardware.linkage import Linkage
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.hardware.network import Network
from pytest_gpuperf.verdicts.opinion import Opinion, Saying
from tests import fake_gpus

GIB, MIB = 2**30, 2**20
GBIT = 1e9 / 8
EIGHT_NDR = Network("mlx5_0, mlx5_1", rdma=True, one=400 * GBIT, together=8 * 400 * GBIT)
EIGHT_HDR = Network("mlx5_0, mlx5_1", rdma=True, one=200 * GBIT, together=8 * 200 * GBIT)
TEN = Network("eth0", one=10 * GBIT, together=10 * GBIT)
HUNDRED = Network("eth0", one=100 * GBIT, together=100 * GBIT)


def cluster(network: Network | None, nodes: int = 2, per_node: int = 8, label: str = "nv18") -> Rates:
    """The rates of such nodes, whose networks have a boot each."""
    machines = {}
    for node in range(nodes):
        gpus = tuple(replace(fake_gpus.gpu(index), uuid=f"GPU-{node}-{index}") for index in range(per_node))
        told = None if network is None else replace(network, boot=f"boot {node}")
        linkage = Linkage("nvlink", label, 450e9) if per_node > 1 else Linkage("none", "", None)
        machines[f"n{node}"] = Machine(gpus, linkage, False, fabric="ib", network=told, memory_told=4.8e12)
    return Rates.of(merge_machines(machines), {})


def said(rates: Rates, op: str, ranks: int, nbytes: int, busbw: float) -> Opinion:
    work = Work(ranks, (Exchange(op, nbytes),), amount=bus_bandwidth(op, ranks, nbytes, 1.0))
    return form_opinion(Metric(busbw, "B/s", "higher", work=work), rates)


@pytest.mark.parametrize(
    ("network", "ranks", "op", "gigabytes"),
    [
        (EIGHT_NDR, 16, "all_reduce", 380),
        (EIGHT_NDR, 16, "all_reduce", 480),
        (EIGHT_NDR, 16, "all_gather", 360),
        (EIGHT_HDR, 16, "all_reduce", 190),
        (EIGHT_HDR, 16, "all_to_all", 40),
        (TEN, 16, "all_reduce", 1.1),
        (HUNDRED, 16, "all_reduce", 2.5),
    ],
)
def test_what_healthy_networks_have_is_plausible(network: Network, ranks: int, op: str, gigabytes: float) -> None:
    assert said(cluster(network), op, ranks, GIB, gigabytes * 1e9).saying is Saying.PLAUSIBLE


@pytest.mark.parametrize(
    ("network", "gigabytes", "component"),
    [
        (EIGHT_NDR, 2.5, "network between nodes (mlx5_0, mlx5_1, 3200 Gbit/s)"),
        (TEN, 0.117, "network between nodes (eth0, 10 Gbit/s)"),
        (HUNDRED, 0.3, "network between nodes (eth0, 100 Gbit/s)"),
    ],
    ids=["TCP in place of RDMA", "a link of 1 Gbit/s on the way", "one core for all"],
)
def test_a_network_far_below_its_adapters_is_named(network: Network, gigabytes: float, component: str) -> None:
    found = said(cluster(network), "all_reduce", 16, GIB, gigabytes * 1e9)
    assert (found.saying, found.component) == (Saying.BELOW, component)


def test_more_than_the_adapters_have_is_above() -> None:
    assert said(cluster(TEN), "all_reduce", 16, GIB, 3e9).saying is Saying.ABOVE


def test_the_range_by_hand() -> None:
    found = said(cluster(EIGHT_NDR), "all_reduce", 16, GIB, 300e9)
    wire = 30 / 16 * GIB
    assert found.high == pytest.approx(1.02 * 30 / 16 * 400e9)
    assert found.low == pytest.approx(wire / ((8.4e-6 + 30 * 14e-6) / 0.8 + wire / (0.8 * 0.5 * 50e9)))
    gathered = said(cluster(EIGHT_NDR), "all_gather", 16, GIB, 300e9)
    assert gathered.high == pytest.approx(1.02 * 15 / 16 / 0.5 * 400e9)


def test_tcp_by_hand() -> None:
    wire = 30 / 16 * GIB
    latency = (8.4e-6 + 30 * 14e-6) / 0.8
    assert said(cluster(TEN), "all_reduce", 16, GIB, 1e9).low == pytest.approx(
        wire / (latency + wire / (0.8 * 0.94 * 1.25e9))
    )
    assert said(cluster(HUNDRED), "all_reduce", 16, GIB, 1e9).low == pytest.approx(
        wire / (latency + wire / table.TCP_THREAD)
    )


def test_gpus_that_reach_adapters_through_the_host_are_expected_to_do_less() -> None:
    direct, far = (said(cluster(EIGHT_HDR, label=label), "all_reduce", 16, GIB, 1e9).low for label in ("pix", "phb"))
    assert direct is not None
    assert far == pytest.approx(0.3 * direct, rel=0.02)


@pytest.mark.parametrize(
    ("rates", "op", "ranks", "nbytes", "why"),
    [
        (cluster(None), "all_reduce", 16, GIB, "no rate of the network between the nodes is known"),
        (
            cluster(Network("eth0", unknown="the rate of eth0 is unknown")),
            "all_reduce",
            16,
            GIB,
            "node n0: the rate of eth0 is unknown",
        ),
        (
            cluster(EIGHT_NDR),
            "all_reduce",
            8,
            GIB,
            "8 ranks fit on one node, so the model does not know whether they use the network",
        ),
        (cluster(EIGHT_NDR), "send_recv", 16, GIB, "the model does not know which messages leave a node"),
        (
            cluster(TEN),
            "all_reduce",
            16,
            MIB,
            "the latency of TCP through eth0 is unknown, and it matters for so few bytes",
        ),
    ],
)
def test_no_opinion_says_why(rates: Rates, op: str, ranks: int, nbytes: int, why: str) -> None:
    found = said(rates, op, ranks, nbytes, 1e3)
    assert (found.saying, found.why) == (Saying.NONE, why)


def test_an_unknown_operation_has_no_opinion() -> None:
    work = Work(16, (Exchange("all_thing", GIB),))
    found = form_opinion(Metric(1.0, "s", "lower", work=work), cluster(EIGHT_NDR))
    assert found.why == "nothing is known of 'all_thing' on 16 ranks"


def test_a_variable_that_chooses_adapters_leaves_no_opinion() -> None:
    between = cluster(EIGHT_NDR).between
    assert between is not None
    chosen = replace(cluster(EIGHT_NDR), between=replace(between, chosen="NCCL_IB_HCA"))
    found = said(chosen, "all_reduce", 16, GIB, 1e9)
    assert found.why == "NCCL_IB_HCA chooses the adapters, and the model does not know their rate"


@pytest.mark.parametrize(("value", "chosen"), [("1", "NCCL_IB_DISABLE"), ("0", ""), ("", "")])
def test_the_environment_of_ranks_is_read(value: str, chosen: str) -> None:
    machine = Machine((fake_gpus.gpu(0),), Linkage("network", "", None), False, node_gpus=(1, 1))
    assert BetweenNodes.of(machine, {"NCCL_IB_DISABLE": value}).chosen == chosen


def test_messages_of_nodes_with_one_gpu_each_all_leave_them() -> None:
    rates = cluster(TEN, per_node=1)
    assert said(rates, "send_recv", 2, GIB, 1.1e9).saying is Saying.PLAUSIBLE
    assert said(rates, "send_recv", 2, GIB, 0.11e9).saying is Saying.BELOW


def test_what_uses_no_network_is_expected_as_on_one_machine() -> None:
    copied = Metric(1.0, "s", "lower", work=Work(memory_bytes=4.8e12))
    assert form_opinion(copied, cluster(EIGHT_NDR)).component == "GPU memory"


def test_no_figure_is_carried_to_other_numbers_of_ranks_over_a_network() -> None:
    work = Work(16, (Exchange("all_reduce", GIB),))
    assert predict_scaled(Metric(1.0, "s", "lower", work=work), 16, cluster(EIGHT_NDR)) is None
