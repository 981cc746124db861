"""A sweep's curve: its regimes, its dips, and the three figures that are judged."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from pytest_gpuperf import Exchange, GiB, KiB, MiB, Sweep, Timing, Work
from pytest_gpuperf.figures.regimes import find_regimes
from pytest_gpuperf.figures.sweep import NEIGHBOURS
from pytest_gpuperf.figures.timing import Link, RankSamples

SIZES = tuple(2**power for power in range(8, 31))  # 256 B to 1 GiB


def swept(seconds: Sequence[float], sizes: Sequence[int] = SIZES, op: str | None = None, ranks: int = 2) -> Sweep:
    def timing(second: float) -> Timing:
        samples = RankSamples((second,) * 3, "cuda_event", cuda_graph=False, steps_per_sample=1)
        return Timing((samples,) * ranks, Link(450e9, "NVLink", multicast=False))

    return Sweep(op, tuple(sizes), tuple(map(timing, seconds)))


def line(alpha: float, beta: float) -> Callable[[int], float]:
    return lambda nbytes: alpha + nbytes / beta


def noisy(seconds: Sequence[float], spread: float, seed: int) -> list[float]:
    draw = random.Random(seed)
    return [second * math.exp(draw.gauss(0.0, spread)) for second in seconds]


def test_one_line_is_one_regime() -> None:
    (found,) = find_regimes(SIZES, [line(8e-6, 300e9)(size) for size in SIZES])
    assert (found.first, found.last) == (SIZES[0], SIZES[-1])
    assert found.alpha == pytest.approx(8e-6)
    assert found.beta == pytest.approx(300e9)
    assert found.residual < 1e-9


@pytest.mark.parametrize("seed", range(20))
def test_protocols_are_told_apart_and_noise_is_not_taken_for_one(seed: int) -> None:
    """LL up to 64 KiB, LL128 up to 4 MiB, then Simple: latencies and bandwidths that differ as NCCL's do."""
    low, middle, high = line(6e-6, 8e9), line(12e-6, 180e9), line(30e-6, 360e9)
    exact = [(low if size <= 64 * KiB else middle if size <= 4 * MiB else high)(size) for size in SIZES]
    found = find_regimes(SIZES, noisy(exact, 0.01, seed))
    assert [(one.first, one.last) for one in found] == [
        (256, 64 * KiB),
        (128 * KiB, 4 * MiB),
        (8 * MiB, GiB),
    ]
    for one, (alpha, beta) in zip(found, [(6e-6, 8e9), (12e-6, 180e9), (30e-6, 360e9)], strict=True):
        assert one.alpha == pytest.approx(alpha, rel=0.35)
        assert one.beta == pytest.approx(beta, rel=0.06)
        assert one.residual < 0.05


@pytest.mark.parametrize(
    ("seconds", "alpha", "beta"),
    [
        ([5e-6] * 4, 5e-6, math.inf),
        ([1e-6, 2e-6, 4e-6, 8e-6], 0.0, 256e6),
        ([9e-6, 8e-6, 7e-6, 6e-6], 7.3e-6, math.inf),
    ],
    ids=["flat", "all bandwidth", "falling"],
)
def test_neither_latency_nor_slope_is_negative(seconds: list[float], alpha: float, beta: float) -> None:
    (found,) = find_regimes(SIZES[:4], seconds)
    assert found.alpha == pytest.approx(alpha, rel=0.02, abs=1e-12)
    assert found.beta == pytest.approx(beta)


def test_two_points_have_no_regime() -> None:
    assert find_regimes([256, 512], [1e-6, 2e-6]) == ()


def test_a_size_far_below_its_neighbours_is_a_dip_and_no_regime() -> None:
    """As of 64 MiB sent between 8 H200s: 80 GB/s, and 350 on both sides of it."""
    seconds = [line(10e-6, 350e9)(size) for size in SIZES]
    seconds[SIZES.index(64 * MiB)] = 64 * MiB / 80e9
    found = swept(seconds)
    (dip,) = found.dips
    assert dip.nbytes == 64 * MiB
    assert dip.bandwidth == pytest.approx(80e9)
    assert dip.promised == pytest.approx(32 * MiB / seconds[SIZES.index(32 * MiB)])  # what half the size reaches
    assert len(found.regimes) == 1
    assert found.evenness.value == pytest.approx(dip.bandwidth / dip.promised)


def test_a_size_that_is_timed_again_has_its_faster_time() -> None:
    found = swept([1e-3, 9e-3, 2e-3], sizes=[1, 2, 4])
    again = {2: found.timings[0], 4: found.timings[1]}
    assert found.at_best(again).seconds == (1e-3, 1e-3, 2e-3)
    assert found.at_best({}) == found


def test_a_dip_of_several_sizes_is_found_whole() -> None:
    seconds = [line(10e-6, 350e9)(size) * (3 if MiB <= size <= 4 * MiB else 1) for size in SIZES]
    assert [dip.nbytes for dip in swept(seconds).dips] == [MiB, 2 * MiB, 4 * MiB]


def test_a_smaller_size_that_takes_longer_than_a_larger_one_is_a_dip_wherever_it_is() -> None:
    seconds = [12e-6, *(line(8e-6, 350e9)(size) for size in SIZES[1:])]
    assert [dip.nbytes for dip in swept(seconds).dips] == [256]


@pytest.mark.parametrize("seed", range(20))
def test_a_change_of_protocol_a_cache_and_noise_are_no_dips(seed: int) -> None:
    protocols = [min(line(6e-6, 8e9)(size), line(15e-6, 350e9)(size)) for size in SIZES]
    cache = [size / 5e12 + 2e-6 if size < 40 * MiB else size / 2e12 for size in SIZES]
    for exact in (protocols, cache):
        found = swept(noisy(exact, 0.01, seed))
        assert found.dips == ()
        assert 0.93 < found.evenness.value <= 1.03


def test_bandwidth_of_a_collective_is_the_bus_bandwidth_and_its_peak_has_the_links_limit() -> None:
    seconds = [line(10e-6, 300e9)(size) for size in SIZES]
    found = swept(seconds, op="all_reduce", ranks=4)
    assert found.bandwidths[-1] == pytest.approx(1.5 * GiB / seconds[-1])
    peak = found.peak
    assert peak.value == pytest.approx(1.5 * GiB / seconds[-1])
    assert (peak.unit, peak.better, peak.limit, peak.limit_name) == ("B/s", "higher", 450e9, "NVLink")


def test_figures_say_what_they_are() -> None:
    found = swept([line(10e-6, 300e9)(size) for size in SIZES])
    assert {name: (one.unit, one.better, one.clock) for name, one in found.figures.items()} == {
        "alpha": ("s", "lower", "cuda_event"),
        "peak": ("B/s", "higher", "cuda_event"),
        "evenness": ("x", "higher", "cuda_event"),
    }
    assert found.figures["alpha"].value == pytest.approx(10e-6)
    assert found.figures["peak"].value == pytest.approx(found.bandwidths[-1])


def test_of_a_curve_without_latency_the_smallest_size_tells_it() -> None:
    assert swept([size / 1e9 for size in SIZES]).alpha.value == pytest.approx(256 / 1e9)
    assert swept([3e-6, 4e-6], SIZES[:2]).alpha.value == pytest.approx(3e-6)


def test_half_of_the_peak_is_reached_between_two_sizes() -> None:
    """With alpha + size / beta, half of beta is reached at alpha * beta (Hockney)."""
    found = swept([line(10e-6, 300e9)(size) for size in SIZES])
    assert found.half_size == pytest.approx(10e-6 * found.bandwidths[-1], rel=0.03)
    assert swept([1e-6] * 3, SIZES[:3]).half_size == pytest.approx(512.0)
    assert swept([1e-6, 3e-6], SIZES[:2]).half_size == 256.0


def test_a_collectives_latency_says_its_work_and_evenness_what_it_is_held_against() -> None:
    seconds = [line(8e-6, 300e9)(size) for size in SIZES]
    assert swept(seconds, op="all_reduce").alpha.work == Work(2, (Exchange("all_reduce", 256),))
    assert swept(seconds).alpha.work is None
    assert swept(seconds).evenness.limit_name == NEIGHBOURS
