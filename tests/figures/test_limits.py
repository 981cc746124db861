"""What the links allow."""

import pytest

from pytest_gpuperf.hardware.limits import busbw_limit

LINE = 450e9


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
@pytest.mark.parametrize("world_size", [2, 8])
def test_without_multicast_the_line_rate_is_the_limit(op: str, world_size: int) -> None:
    assert busbw_limit(op, world_size, LINE, multicast=False) == LINE


def test_multicast_lifts_all_reduce_by_what_the_switch_adds() -> None:
    # 1 GiB over 8 ranks: one GPU moves 9/8 GiB per direction, and busbw counts 14/8 GiB.
    assert busbw_limit("all_reduce", 8, LINE, multicast=True) == pytest.approx(LINE * (14 / 8) / (9 / 8))
    assert busbw_limit("all_reduce", 8, LINE, multicast=True) == pytest.approx(700e9)


def test_multicast_never_lowers_the_limit() -> None:
    assert busbw_limit("all_reduce", 2, LINE, multicast=True) == LINE


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "all_to_all", "broadcast"])
def test_multicast_lifts_nothing_else(op: str) -> None:
    assert busbw_limit(op, 8, LINE, multicast=True) == LINE


@pytest.mark.parametrize("world_size", [1, 0])
def test_one_rank_has_no_limit(world_size: int) -> None:
    with pytest.raises(
        ValueError, match=f"'all_reduce' with world_size {world_size} has no limit, expected at least 2"
    ):
        busbw_limit("all_reduce", world_size, LINE, multicast=False)
