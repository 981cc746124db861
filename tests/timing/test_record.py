"""What the samples of all ranks come to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Comparison, Timing
from pytest_gpuperf.timing.record import Link, RankSamples, quartiles

NO_LINK = Link(None, "", multicast=False)
NVLINK = Link(450e9, "nv18", multicast=False)


def timing(*ranks: tuple[float, ...], link: Link = NO_LINK, cuda_graph: bool = False) -> Timing:
    samples = [RankSamples(seconds, "cuda_event", cuda_graph, 1) for seconds in ranks]
    return Timing(tuple(samples), link)


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


def test_the_speedup_is_the_ratio_of_the_medians() -> None:
    pair = Comparison(timing((4.0, 4.0, 8.0, 8.0)), timing((2.0, 2.0, 2.0, 2.0)))
    metric = pair.speedup
    assert (metric.value, metric.unit, metric.better) == (3.0, "x", "higher")
    assert (metric.q1, metric.q3, metric.samples) == (2.5, 3.5, 2)
    assert metric.clock == "cuda_event"


def test_a_drift_within_a_block_leaves_its_ratio() -> None:
    # Blocks of ABBA on a machine that slows down steadily: 1, 2, 3, 4 times as slow, then 5, 6, 7, 8.
    pair = Comparison(timing((1.0, 4.0, 5.0, 8.0)), timing((2.0, 3.0, 6.0, 7.0)))
    assert (pair.speedup.q1, pair.speedup.q3) == (1.0, 1.0)


def test_a_slower_arm_has_a_speedup_below_1() -> None:
    assert Comparison(timing((1.0, 1.0)), timing((2.0, 2.0))).speedup.value == 0.5
