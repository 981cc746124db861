"""Latency and bandwidth over each way between GPUs, from the links to sockets, and what pods of one GPU lose."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

import pytest

from pytest_gpuperf import Metric, Perf, Ranks, Sweep
from suites.shared.ways import IPC, NET, ONE_GPU_EACH, P2P, READ, SHM, Way, connected, over
from suites.transports.test_correctness import PROGRAMS

pytestmark = pytest.mark.perf
Measured: TypeAlias = dict[tuple[str, int, str], Sweep]
"""Curves by program, number of ranks and way."""


@pytest.fixture(scope="session")
def measured() -> Measured:
    """What this run has measured so far."""
    return {}


def swept(perf: Perf, name: str, way: Way) -> Sweep:
    """The curve of a program over the way that the ranks have; over sockets 64 MiB take tens of milliseconds."""
    program, verify = PROGRAMS[name]
    sizes = [2**power for power in range(10, perf.sized(27 if way is NET else 29, smoke=13), 2)]
    return perf.sweep(program, sizes=sizes, op={"ring": "send_recv"}.get(name, name), verify=verify)


def judge(perf: Perf, ranks: Ranks, measured: Measured, name: str, way: Way) -> None:
    """Measures a program over a way that NCCL's log proves, and says how it stands beside the links."""
    way.require(ranks.run(connected))
    curve = measured[name, perf.world_size, way.name] = swept(perf, name, way)
    figures = {"alpha": curve.alpha, "peak": curve.peak}
    # The model is that of writes over the links. Reads cross the same links at about 85 % of the bandwidth of writes,
    # because each waits for its answer. SHM and NET use other paths.
    if way in (READ, SHM, NET):
        figures = {each: dataclasses.replace(figure, work=None) for each, figure in figures.items()}
    perf.check(**figures)
    # Two tests' figures: a ratio to look at, and none to judge.
    links = measured.get((name, perf.world_size, P2P.name))
    if links is not None and way is not P2P:
        perf.show(
            latency_over_links=Metric(curve.alpha.value / links.alpha.value, "x", "lower"),
            links_over_bandwidth=Metric(links.peak.value / curve.peak.value, "x", "lower"),
        )


@over(P2P)
@pytest.mark.parametrize("name", PROGRAMS)
def test_p2p(perf: Perf, ranks: Ranks, measured: Measured, name: str) -> None:
    judge(perf, ranks, measured, name, P2P)


@over(ONE_GPU_EACH)
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_visible_gpu_in_each_process(perf: Perf, ranks: Ranks, measured: Measured, name: str) -> None:
    judge(perf, ranks, measured, name, ONE_GPU_EACH)


@over(IPC)
@pytest.mark.parametrize("name", PROGRAMS)
def test_ipc(perf: Perf, ranks: Ranks, measured: Measured, name: str) -> None:
    judge(perf, ranks, measured, name, IPC)


@over(READ)
@pytest.mark.parametrize("name", PROGRAMS)
def test_read(perf: Perf, ranks: Ranks, measured: Measured, name: str) -> None:
    judge(perf, ranks, measured, name, READ)


@over(SHM)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.depends("host")
def test_shm(perf: Perf, ranks: Ranks, measured: Measured, name: str) -> None:
    judge(perf, ranks, measured, name, SHM)


@over(NET)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.depends("host")
def test_net(perf: Perf, ranks: Ranks, measured: Measured, name: str) -> None:
    judge(perf, ranks, measured, name, NET)


@pytest.mark.skipif("not config.getoption('--gpuperf-smoke')", reason="the body is tried with --smoke alone")
@pytest.mark.ranks(2, 4, 8, device="cpu")
@pytest.mark.parametrize("name", PROGRAMS)
def test_body(perf: Perf, name: str) -> None:
    """What every way is measured by, tried without GPUs: a time of CPUs is no figure of their hardware."""
    perf.check(alpha=swept(perf, name, NET).alpha)
