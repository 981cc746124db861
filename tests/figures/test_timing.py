"""What the samples of all ranks come to."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Comparison, Timing
from pytest_gpuperf.figures.timing import (
    ONE_SIDED,
    ONE_SIDED_OF_A_LOOK,
    Link,
    Pair,
    RankSamples,
    bounds,
    quartiles,
)
from pytest_gpuperf.fixtures.perf import MAX_GROUPS, MIN_GROUPS
from pytest_gpuperf.hardware.fitness import FIT

NO_LINK = Link(None, "", multicast=False)
NVLINK = Link(450e9, "nv18", multicast=False)


def timing(*ranks: tuple[float, ...], link: Link = NO_LINK, cuda_graph: bool = False) -> Timing:
    samples = [RankSamples(seconds, "cuda_event", cuda_graph, 1) for seconds in ranks]
    return Timing(tuple(samples), link)


@pytest.mark.parametrize("host_bound", [False, True])
@pytest.mark.parametrize(("cuda_graph", "clock"), [(False, "cuda_event"), (True, "cuda_event+graph")])
def test_figures_say_what_told_their_time(cuda_graph: bool, host_bound: bool, clock: str) -> None:
    samples = [RankSamples((1.0,), "cuda_event", cuda_graph, 1, host_bound=late) for late in (False, host_bound)]
    measured = Timing(tuple(samples), NO_LINK)
    assert measured.host_bound is host_bound
    for figure in (measured.time, measured.rate(1.0, "Hz")):
        assert (figure.clock, figure.host_bound) == (clock, host_bound)


@pytest.mark.parametrize("late", [("baseline", 2), ("optimized", 1), None])
def test_a_comparison_says_where_the_time_of_an_arm_is_the_hosts_in_any_group(late: tuple[str, int] | None) -> None:
    def arm(name: str, group: int) -> Timing:
        return Timing((RankSamples((1.0, 1.0), "cuda_event", False, 1, host_bound=(name, group) == late),), NO_LINK)

    found = Comparison(tuple(Pair(arm("baseline", group), arm("optimized", group)) for group in range(3)))
    told = {name for name in ("baseline", "optimized") if getattr(found, name).time.host_bound}
    assert told == ({late[0]} if late else set())
    assert found.speedup.host_bound is bool(late)


def test_a_sample_is_the_slowest_ranks() -> None:
    measured = timing((1.0, 5.0, 3.0), (2.0, 4.0, 3.5))
    assert measured.samples == (2.0, 5.0, 3.5)
    assert measured.median == 3.5
    assert measured.world_size == 2


@given(
    st.lists(
        st.lists(st.floats(1e-6, 1.0), min_size=3, max_size=3).map(lambda values: (values[0], values[1], values[2])),
        min_size=1,
        max_size=8,
    )
)
def test_no_rank_is_slower_than_the_sample(ranks: list[tuple[float, ...]]) -> None:
    samples = timing(*ranks).samples
    assert all(any(rank[index] == sample for rank in ranks) for index, sample in enumerate(samples))
    assert all(rank[index] <= sample for rank in ranks for index, sample in enumerate(samples))


def test_quartiles_are_interpolated() -> None:
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 4.0)
    assert quartiles([4.0, 1.0]) == (1.75, 3.25)
    assert quartiles([7.0]) == (7.0, 7.0)


def test_the_time_is_the_median_and_lower_is_better() -> None:
    metric = timing((1.0, 2.0, 3.0, 4.0, 5.0)).time
    assert (metric.value, metric.unit, metric.better) == (3.0, "s", "lower")
    assert (metric.q1, metric.q3, metric.samples) == (2.0, 4.0, 5)
    assert (metric.clock, metric.limit) == ("cuda_event", None)


def test_a_time_of_graph_replays_is_of_another_clock() -> None:
    assert timing((1.0,), cuda_graph=True).time.clock == "cuda_event+graph"


def test_a_rate_has_the_quartiles_of_the_times_turned_around() -> None:
    metric = timing((1.0, 2.0, 3.0, 4.0, 5.0)).rate(12.0, "FLOP/s", limit=100.0, limit_name="peak")
    assert (metric.value, metric.unit, metric.better) == (4.0, "FLOP/s", "higher")
    assert (metric.q1, metric.q3) == (3.0, 6.0)
    assert (metric.limit, metric.limit_name) == (100.0, "peak")


def test_busbw_is_that_of_the_table_with_the_links_limit() -> None:
    measured = timing(*[(1e-3, 1e-3)] * 8, link=NVLINK)
    metric = measured.busbw("all_reduce", 1 << 20)
    assert metric.value == pytest.approx((1 << 20) / 1e-3 * 2 * 7 / 8)
    assert (metric.unit, metric.better, metric.limit, metric.limit_name) == ("B/s", "higher", 450e9, "nv18")


def test_multicast_moves_the_limit_of_all_reduce_alone() -> None:
    measured = timing(*[(1e-3, 1e-3)] * 8, link=Link(450e9, "nv18", multicast=True))
    assert measured.busbw("all_reduce", 1000).limit == pytest.approx(450e9 * 1.75 / 1.125)
    assert measured.busbw("all_gather", 1000).limit == 450e9


def test_busbw_without_a_known_link_has_no_limit() -> None:
    assert timing((1e-3,), (1e-3,)).busbw("broadcast", 1000).limit is None


def test_algbw_is_size_over_time() -> None:
    metric = timing((2e-3,)).algbw("all_gather", 1 << 20)
    assert metric.value == pytest.approx((1 << 20) / 2e-3)
    assert metric.limit is None


def test_bandwidths_of_unknown_operations_are_refused() -> None:
    measured = timing((1e-3,), (1e-3,))
    with pytest.raises(ValueError, match=r"^no bandwidth is defined for 'gossip'; known are all_gather, all_reduce, "):
        measured.algbw("gossip", 1000)
    with pytest.raises(ValueError, match=r"^no bus bandwidth is defined for 'gossip'; known are "):
        measured.busbw("gossip", 1000)


@pytest.mark.parametrize("link", [NO_LINK, NVLINK], ids=["no link", "link"])
def test_one_rank_has_no_busbw(link: Link) -> None:
    with pytest.raises(ValueError, match=r"needs 2 ranks or more|expected at least 2 ranks"):
        timing((1e-3,), link=link).busbw("all_reduce", 1000)


def raced(*groups: tuple[tuple[float, ...], tuple[float, ...]], at_least: float | None = None) -> Comparison:
    return Comparison(tuple(Pair(timing(slow), timing(fast)) for slow, fast in groups), at_least)


def test_the_speedup_is_the_mean_ratio_of_the_blocks() -> None:
    metric = raced(((4.0, 4.0, 9.0, 9.0), (2.0, 2.0, 2.0, 2.0))).speedup
    assert metric.value == pytest.approx(3.0)  # of 2 and 4.5
    assert (metric.unit, metric.better) == ("x", "higher")
    assert (metric.q1, metric.q3, metric.samples) == (2.625, 3.875, 2)
    assert (metric.clock, metric.interval) == ("cuda_event", None)


def test_a_drift_within_a_block_leaves_its_ratio() -> None:
    # Blocks of ABBA on a machine that slows down steadily: 1, 2, 3, 4 times as slow, then 5, 6, 7, 8.
    metric = raced(((1.0, 4.0, 5.0, 8.0), (2.0, 3.0, 6.0, 7.0))).speedup
    assert (metric.q1, metric.q3) == (1.0, 1.0)


def test_a_slower_arm_has_a_speedup_below_1() -> None:
    assert raced(((1.0, 1.0), (2.0, 2.0))).speedup.value == 0.5


GROUPS = [((slow, slow), (1.0, 1.0)) for slow in (1.9, 2.0, 2.1)]


def test_the_interval_of_a_speedup_is_students_over_the_groups() -> None:
    # mean 0.692313, standard deviation 0.050047, t(0.95, 2) = 2.919986
    interval = raced(*GROUPS).interval
    assert interval == pytest.approx((math.exp(0.692313 - 0.084372), math.exp(0.692313 + 0.084372)), rel=1e-4)
    assert raced(*GROUPS).speedup.interval == interval


@pytest.mark.parametrize(("level", "erred"), [(ONE_SIDED_OF_A_LOOK, 0.06), (ONE_SIDED, 0.15)])
def test_looks_after_each_group_err_seldom_all_together(level: float, erred: float) -> None:
    """Races whose true speedup is just what is asked for, with seeded noise; at 95 % a look they err far more often."""
    draw = random.Random(1)
    races, missed = 4000, 0
    for _ in range(races):
        gains = [draw.gauss(0.0, 1.0) for _ in range(MIN_GROUPS - 1)]
        while len(gains) < MAX_GROUPS:
            gains.append(draw.gauss(0.0, 1.0))
            low, high = bounds(gains, level)
            if high < 0.0 or low >= 0.0:
                missed += high < 0.0
                break
    assert erred - 0.035 < missed / races < erred


def test_the_interval_is_wider_where_it_is_looked_at_after_each_group() -> None:
    # t(0.985, 2) = 5.642778
    low, high = raced(*GROUPS).interval or (0.0, 0.0)
    lower, higher = raced(*GROUPS, at_least=1.7).interval or (0.0, 0.0)
    assert (lower, higher) == pytest.approx((math.exp(0.692313 - 0.163046), math.exp(0.692313 + 0.163046)), rel=1e-4)
    assert lower < low < high < higher


@pytest.mark.parametrize(("at_least", "decided"), [(1.65, True), (1.95, False), (2.4, True), (None, True)])
def test_a_speedup_is_decided_once_its_interval_is_on_one_side(at_least: float | None, decided: bool) -> None:
    assert raced(*GROUPS, at_least=at_least).decided is decided


def test_the_samples_of_all_groups_are_the_arms() -> None:
    pair = raced(((4.0, 5.0), (1.0, 2.0)), ((6.0, 7.0), (3.0, 3.0)))
    assert pair.baseline.samples == (4.0, 5.0, 6.0, 7.0)
    assert pair.optimized.samples == (1.0, 2.0, 3.0, 3.0)


def test_the_imbalance_is_of_the_ranks_medians() -> None:
    assert timing((1.0, 2.0, 3.0), (2.0, 3.0, 9.0)).imbalance == 0.5


def test_the_precision_is_that_of_the_slowest_ranks_median() -> None:
    measured = timing(tuple(float(value) for value in range(1, 11)), (1.0,) * 10)
    assert measured.precision == pytest.approx((9 - 2) / (9 + 2))


def test_a_comparison_was_at_the_power_limit_if_a_group_was() -> None:
    def at(*, power_capped: bool) -> Timing:
        return replace(timing((1.0, 1.0)), conditions=replace(FIT, power_capped=power_capped))

    groups = tuple(Pair(at(power_capped=capped), at(power_capped=capped)) for capped in (False, True, False))
    assert Comparison(groups).speedup.power_capped
    assert not Comparison(groups[2:]).speedup.power_capped


def test_figures_have_the_clock_of_the_gpus_meanwhile() -> None:
    def at(clock: float | None) -> Timing:
        return replace(timing((1.0, 1.0)), conditions=replace(FIT, sm_clock=clock))

    assert at(1.98e9).time.sm_clock == 1.98e9
    groups = tuple(Pair(at(clock), at(clock)) for clock in (1.98e9, None, 1.2e9, 1.5e9))
    assert Comparison(groups).optimized.time.sm_clock == 1.5e9
    assert Comparison(groups[1:2]).optimized.time.sm_clock is None
