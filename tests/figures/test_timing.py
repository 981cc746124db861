"""What the samples of all ranks come to."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Timing
from pytest_gpuperf.figures.conditions import FIT
from pytest_gpuperf.figures.timing import Link, RankSamples, quartiles

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
        assert (figure.clock, figure.host_bound, figure.waits) == (clock, host_bound, False)


def test_figures_say_whether_a_rank_waits_for_its_device() -> None:
    samples = [RankSamples((1.0,), "cuda_event", False, 1, waits=waits) for waits in (False, True)]
    measured = Timing(tuple(samples), NO_LINK)
    assert measured.waits
    assert not measured.time.waits  # which is no reason for what is the device's
    late = Timing((RankSamples((1.0,), "cuda_event", False, 1, host_bound=True, waits=True),), NO_LINK)
    assert late.time.waits


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


def test_the_imbalance_is_of_the_ranks_medians() -> None:
    assert timing((1.0, 2.0, 3.0), (2.0, 3.0, 9.0)).imbalance == 0.5


def test_the_slowest_rank_has_the_longest_median() -> None:
    assert timing((1.0, 9.0, 1.0), (2.0, 2.0, 2.0), (1.0, 1.0, 8.0)).slowest_rank == 1


def test_the_precision_is_that_of_the_slowest_ranks_median() -> None:
    measured = timing(tuple(float(value) for value in range(1, 11)), (1.0,) * 10)
    assert measured.precision == pytest.approx((9 - 2) / (9 + 2))


def test_figures_have_the_clock_of_the_gpus_meanwhile() -> None:
    measured = replace(timing((1.0, 1.0)), conditions=replace(FIT, sm_clock=1.98e9))
    assert measured.time.sm_clock == 1.98e9
