"""Bytes over NVLink: rings of peer copies, the slowest pair of GPUs, and the ways over one link."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

import pytest
import torch

from pytest_gpuperf import Context, Matrix, Metric, MiB, Perf, Ranks, Timing
from suites.nvlink.programs import copies as programs
from suites.nvlink.programs import orders, paths
from suites.nvlink.programs.copies import Row

pytestmark = [
    pytest.mark.perf,
    pytest.mark.ranks(2, 4, 8, nodes=1, device="cuda", largest=True),
    pytest.mark.depends("pair"),
]

NBYTES = 256 * MiB
SEED = 1
# B/s. What an accepted NVLink machine gives each pair at the least; a healthy pair of H100 or H200 is at
# 370 to 390 GB/s, one staged through the host at 30 to 50. The baseline guards what lies between.
FLOOR = 250e9


def arrived(ctx: Context, destination: torch.Tensor, steps: int) -> None:
    """Whether the next rank's GPU holds what this rank sends."""
    wrong = programs.complaint(destination, rank=ctx.rank, seed=SEED, gpu=programs.following(ctx))
    assert not wrong, wrong
    destination.zero_()  # a later step must write it anew


def test_ring_copy(perf: Perf) -> None:
    nbytes = perf.sized(NBYTES, smoke=MiB)
    pair = perf.compare(
        baseline=programs.ring_staged,
        optimized=programs.ring_peer,
        verify=arrived,
        shape=(nbytes,),
        dtype=torch.uint8,
        seed=SEED,
    )
    link = pair.optimized.link
    assert perf.smoke or pair.speedup.value > 1, (
        f"peer to peer is no faster than by the host: {pair.speedup.value:.2f}x"
    )
    perf.check(peer=pair.optimized.rate(nbytes, "B/s", limit=link.line_rate, limit_name=link.name, plain=True))
    # How fast the host copies depends on where its memory and cores lie (10 % between two machines of one key).
    perf.show(speedup=pair.speedup, staged=pair.baseline.rate(nbytes, "B/s"))


def matrix_of(ranks: Ranks, nbytes: int) -> list[Row]:
    """The bandwidths of all pairs, one sender after the other."""
    senders = range(ranks.world_size)
    rows = [ranks.run(programs.pair_bandwidths, sender=sender, nbytes=nbytes)[sender] for sender in senders]
    return [row for row in rows if row is not None]


def test_pair_bandwidth(perf: Perf, ranks: Ranks) -> None:
    matrix = matrix_of(ranks, perf.sized(NBYTES, smoke=MiB))
    link = perf.link
    if link.name.startswith("nv"):
        unreachable = dict(enumerate(ranks.run(programs.unreachable)))
        assert not any(unreachable.values()), f"GPUs that each GPU cannot write to: {unreachable}"
        slow = programs.too_slow(matrix, perf.sized(FLOOR, smoke=0.0))
        assert not slow, slow
    slowest = programs.hops(matrix)[0]
    medians = [[statistics.median(samples) if samples else None for samples in row] for row in matrix]
    perf.show(pairs=Matrix.of(medians, "B/s", "higher"))
    perf.check(slowest_pair=rate_of(perf, slowest.samples))


def rate_of(perf: Perf, samples: Sequence[float]) -> Metric:
    """The median of some bandwidths, beside what the link can do in one direction."""
    q1, median, q3 = statistics.quantiles(samples, n=4, method="inclusive")
    link = perf.link
    return Metric(
        median,
        "B/s",
        "higher",
        q1=q1,
        q3=q3,
        samples=len(samples),
        limit=link.line_rate,
        limit_name=link.name,
        plain=True,
        clock="cuda_event",
    )


@pytest.mark.parametrize("engine", ["copy_engine", "kernel"])
def test_ways_over_the_link(perf: Perf, ranks: Ranks, engine: paths.Engine) -> None:
    rates = partial(ranks.run, paths.rates, engine=engine, nbytes=perf.sized(NBYTES, smoke=MiB), samples=10, copies=8)
    found: dict[str, Metric] = {}
    for access in ("write", "read"):
        (alone,) = (samples for samples in rates(access=access, alone=True) if samples is not None)
        # All ranks copy to the other half of the GPUs and from it: the slowest rank is what the bisection gives each.
        together = min((of_rank or [] for of_rank in rates(access=access, alone=False)), key=statistics.median)
        found |= {access: rate_of(perf, alone), f"{access}_all_at_once": rate_of(perf, together)}
    perf.check(**found)


def test_order_of_a_ring(perf: Perf, ranks: Ranks) -> None:
    nbytes = perf.sized(NBYTES, smoke=MiB)
    chosen = orders.orders(matrix_of(ranks, nbytes))
    if chosen is None:
        pytest.skip("all pairs of these GPUs are alike: no order of a ring is better than another")
    best, worst = chosen
    fast, slow = (in_order(perf, order, nbytes) for order in (best, worst))
    perf.check(best=fast.rate(nbytes, "B/s"))
    perf.show(gain=Metric(slow.median / fast.median, "x", "higher"), worst=slow.rate(nbytes, "B/s"))


def in_order(perf: Perf, order: list[int], nbytes: int) -> Timing:
    """How long a ring in this order takes."""

    def check(ctx: Context, got: torch.Tensor, steps: int) -> None:
        orders.arrived(ctx, got, order, SEED)

    return perf.measure(orders.ring_of, verify=check, order=order, nbytes=nbytes, seed=SEED)
