"""Latency and bandwidth of each RDMA port, between two GPUs of this host whose messages loop through it."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_gpuperf import Metric, Perf, Ranks, Sweep
from suites.network import reference
from suites.network.programs import Port, ports
from suites.shared.chances import bounds_of_median
from suites.shared.ring import ring

pytestmark = [pytest.mark.perf, reference.WORLD]

AT_LEAST = 0.5
"""The part of the port's rate that a healthy one carries at least."""


def swept(perf: Perf) -> Sweep:
    """The curve of a ring of messages; all of them go through the one port."""
    sizes = [2**power for power in range(10, perf.sized(29, smoke=14), 3)]
    return perf.sweep(ring, sizes=sizes, op="send_recv", verify=reference.arrived)


def through_port(perf: Perf, curve: Sweep, rate: float) -> tuple[Metric, Metric]:
    """The bytes that a port sends per second, and their share of its rate; it sends the messages of all ranks."""
    fastest = max(range(len(curve.sizes)), key=curve.bandwidths.__getitem__)
    timing = curve.timings[fastest]
    nbytes = perf.world_size * curve.sizes[fastest]
    low, high = bounds_of_median(timing.samples)
    figure = timing.rate(nbytes, "B/s")
    judged = dataclasses.replace(figure, interval=(nbytes / high, nbytes / low), at_least=AT_LEAST * rate)
    return judged, Metric(figure.value / rate, "x", "higher", samples=figure.samples)


def without_model(figure: Metric) -> Metric:
    """Returns the same figure without its ``work``: a model of the links between GPUs has no say."""
    return dataclasses.replace(figure, work=None)


@reference.each_port(ports())
def test_loopback(perf: Perf, ranks: Ranks, port: Port) -> None:
    routes = reference.require(ranks, port)
    curve = swept(perf)
    bandwidth, of_port = through_port(perf, curve, port.rate)
    perf.check(alpha=without_model(curve.alpha), bandwidth=bandwidth)
    counts = {name: sum(route.channels[name] for route in routes) for name in routes[0].channels}
    channels = {f"channels_{name}": Metric(count, "x", "higher") for name, count in counts.items() if count}
    perf.show(of_port=of_port, **channels)


@pytest.mark.skipif("not config.getoption('--gpuperf-smoke')", reason="the body is tried with --smoke alone")
@pytest.mark.ranks(2, device="cpu")
def test_body(perf: Perf) -> None:
    """What every port is measured by, tried without GPUs: a time of CPUs is no figure of their hardware."""
    curve = swept(perf)
    bandwidth, of_port = through_port(perf, curve, 50e9)
    perf.check(alpha=without_model(curve.alpha), bandwidth=bandwidth)
    perf.show(of_port=of_port)
