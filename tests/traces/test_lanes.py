"""The timeline of the middle step."""

import pytest

from pytest_gpuperf.traces.lanes import MOST, NAME_CHARACTERS, make_lanes, merge_lanes
from pytest_gpuperf.traces.profile import Lane
from tests.traces.kineto import events, gloo_step, gpu_step, kernel, launch, x


def test_a_lane_for_each_kind_of_work_on_each_stream_and_thread() -> None:
    found = make_lanes(events(*gpu_step(0.0, 1), *gpu_step(1000.0, 2), *gpu_step(2000.0, 3, 30.0)))
    assert found == [
        Lane(0, "compute", "stream 7", ((20e-6, 50e-6, "gemm<float>"),)),
        Lane(0, "communication", "stream 20", ((30e-6, 50e-6, "ncclDevKernel_AllReduce"),)),
        Lane(0, "host", "thread 4711 (python)", ((1e-6, 3e-6, "aten::mm"), (5e-6, 3e-6, "record_param_comms"))),
    ]


def test_with_gloo_the_host_computes() -> None:
    found = make_lanes(events(*gloo_step(0.0), device="cpu"))
    assert [(lane.kind, lane.track) for lane in found] == [
        ("compute", "thread 4711 (python)"),
        ("communication", "thread 4800"),
    ]
    assert [interval[2] for interval in found[0].intervals] == ["aten::mm"]


def test_copies_have_a_lane_of_their_own() -> None:
    copy = x("gpu_memcpy", "Memcpy HtoD", 90.0, 5.0, pid=0, tid=7, correlation=5)
    found = make_lanes(events(*gpu_step(0.0), launch(8.0, 5), copy))
    assert [(lane.kind, lane.track) for lane in found][:3] == [
        ("compute", "stream 7"),
        ("communication", "stream 20"),
        ("copy", "stream 7"),
    ]


def test_a_kernel_that_begins_while_the_one_before_it_drains_begins_after_it() -> None:
    found = make_lanes(events(*gpu_step(0.0), launch(8.0, 5), kernel("next", 65.0, 20.0, 5)))
    assert found[0].intervals == ((20e-6, 50e-6, "gemm<float>"), (70e-6, 15e-6, "next"))


def test_long_names_are_cut() -> None:
    found = make_lanes(events(*gpu_step(0.0), launch(8.0, 5), kernel("k" * 500, 100.0, 1.0, 5)))
    assert found[0].intervals[1][2] == "k" * (NAME_CHARACTERS - 1) + "…"


def test_few_intervals_stay_as_they_are() -> None:
    lane = Lane(0, "compute", "stream 7", ((0.0, 1e-6, "a"), (2e-6, 1e-6, "b")))
    assert merge_lanes([lane]) == [lane]


def test_small_neighbours_become_one_that_names_the_longest() -> None:
    small = [(i * 1e-6, 0.5e-6 + i * 1e-8, f"k{i}") for i in range(10)]
    large = (1e-3, 1e-3, "large")
    (lane,) = merge_lanes([Lane(0, "compute", "stream 7", (*small, large))], most=2)
    first, second = lane.intervals
    assert first[::2] == (0.0, "k9 (+ 9 more)")
    assert first[1] == pytest.approx(9.59e-6)
    assert second == large


def test_all_lanes_together_have_at_most_so_many() -> None:
    lanes = [
        Lane(rank, "compute", "stream 7", tuple((i * 2e-6, 1e-6 * (1 + i % 7), f"k{i}") for i in range(5000)))
        for rank in range(4)
    ]
    found = merge_lanes(lanes)
    assert 4 <= sum(len(lane.intervals) for lane in found) <= MOST
    for lane in found:
        start, duration, _ = lane.intervals[-1]
        assert start + duration == pytest.approx(9998e-6 + 2e-6)
        assert sum(int(name.partition("(+ ")[2].partition(" ")[0] or 0) + 1 for *_, name in lane.intervals) == 5000


def test_more_lanes_than_intervals_keep_one_each() -> None:
    lanes = [Lane(rank, "host", "thread 1", ((0.0, 1.0, "a"), (10.0, 1.0, "b"))) for rank in range(8)]
    assert [len(lane.intervals) for lane in merge_lanes(lanes, most=5)] == [1] * 8
