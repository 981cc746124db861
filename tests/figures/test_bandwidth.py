"""Bandwidths are nccl-tests' own."""

import pytest

from pytest_gpuperf.figures.bandwidth import BUS_FACTORS, algorithm_bandwidth, bus_bandwidth

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
