"""Bandwidths are nccl-tests' own."""

import pytest

from pytest_gpuperf.figures.bandwidth import BUS_FACTORS, algorithm_bandwidth, bus_bandwidth, compute_busbw_limit

# nccl-tests, doc/PERFORMANCE.md: count elements of ts bytes are given to NCCL on each of n ranks; S and busbw/algbw.
COUNT, TS, N, SECONDS = 1 << 20, 4, 8, 2e-3
TABLE = {
    "all_reduce": (COUNT * TS, 2 * 7 / 8),
    "all_gather": (N * COUNT * TS, 7 / 8),
    "reduce_scatter": (N * COUNT * TS, 7 / 8),
    "all_to_all": (N * COUNT * TS, 7 / 8),
    "gather": (N * COUNT * TS, 7 / 8),
    "scatter": (N * COUNT * TS, 7 / 8),
    "broadcast": (COUNT * TS, 1.0),
    "reduce": (COUNT * TS, 1.0),
    "send_recv": (COUNT * TS, 1.0),
}


def test_every_operation_of_the_table_is_known_and_no_other() -> None:
    assert set(BUS_FACTORS) == set(TABLE)


@pytest.mark.parametrize("op", TABLE)
def test_a_bandwidth_is_that_of_nccl_tests(op: str) -> None:
    nbytes, factor = TABLE[op]
    algbw = algorithm_bandwidth(nbytes, SECONDS)
    assert algbw == pytest.approx(nbytes / 1e9 / 2e-3 * 1e9)
    assert bus_bandwidth(op, N, nbytes, SECONDS) == pytest.approx(algbw * factor)


@pytest.mark.parametrize(
    ("n", "factor"), [(2, 1.0), (3, 4 / 3), (4, 1.5), (8, 1.75)], ids=lambda value: str(round(value, 2))
)
def test_all_reduce_moves_twice_what_others_hold(n: int, factor: float) -> None:
    assert bus_bandwidth("all_reduce", n, 1000, 1.0) == pytest.approx(1000 * factor)


def test_an_unknown_operation_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"^no bus bandwidth is defined for 'allreduce'; known are all_gather, all_reduce, "
    ):
        bus_bandwidth("allreduce", 8, 1000, 1.0)


@pytest.mark.parametrize("n", [1, 0])
def test_one_rank_has_no_bus(n: int) -> None:
    message = f"^bus bandwidth needs 2 ranks or more, got a world of {n}: nothing crosses a link$"
    with pytest.raises(ValueError, match=message):
        bus_bandwidth("all_reduce", n, 1000, 1.0)


LINE = 450e9


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
@pytest.mark.parametrize("world_size", [2, 8])
def test_without_multicast_the_line_rate_is_the_limit(op: str, world_size: int) -> None:
    assert compute_busbw_limit(op, world_size, LINE, multicast=False) == LINE


def test_multicast_lifts_all_reduce_by_what_the_switch_adds() -> None:
    # 1 GiB over 8 ranks: one GPU moves 9/8 GiB per direction, and busbw counts 14/8 GiB.
    assert compute_busbw_limit("all_reduce", 8, LINE, multicast=True) == pytest.approx(LINE * (14 / 8) / (9 / 8))
    assert compute_busbw_limit("all_reduce", 8, LINE, multicast=True) == pytest.approx(700e9)


def test_multicast_never_lowers_the_limit() -> None:
    assert compute_busbw_limit("all_reduce", 2, LINE, multicast=True) == LINE


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "all_to_all", "broadcast"])
def test_multicast_lifts_nothing_else(op: str) -> None:
    assert compute_busbw_limit(op, 8, LINE, multicast=True) == LINE


@pytest.mark.parametrize("world_size", [1, 0])
def test_one_rank_has_no_limit(world_size: int) -> None:
    with pytest.raises(
        ValueError, match=f"'all_reduce' with world_size {world_size} has no limit, expected at least 2"
    ):
        compute_busbw_limit("all_reduce", world_size, LINE, multicast=False)
