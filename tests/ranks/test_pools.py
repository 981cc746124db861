"""The warm pools of a run: which is used again, and which has to go."""

from collections.abc import Iterator

import pytest

from pytest_gpuperf.ranks.launcher import Launcher
from pytest_gpuperf.ranks.pool import Pool, PoolSpec
from pytest_gpuperf.ranks.pools import Pools
from tests.ranks.processes import alive, survivors


@pytest.fixture
def pools() -> Iterator[Pools]:
    pools = Pools(Launcher(("tests.ranks.light_rank",)))
    yield pools
    pools.close()


def get(pools: Pools, world_size: int) -> Pool:
    return pools.get(PoolSpec(world_size), "group", 60)


def pids(pool: Pool) -> list[int]:
    return [int(answer) for answer in pool.run(b"", program="p", seed=0, timeout=60)]


def test_a_pool_is_used_again_and_one_for_another_world_stands_beside_it(pools: Pools) -> None:
    two = get(pools, 2)
    assert get(pools, 3) is not two
    assert get(pools, 2) is two


def test_a_pool_that_ended_is_replaced(pools: Pools) -> None:
    first = get(pools, 2)
    before = pids(first)
    first.kill()
    second = get(pools, 2)
    assert second is not first
    assert set(pids(second)).isdisjoint(before)


def test_retiring_the_others_leaves_the_one(pools: Pools) -> None:
    kept, gone = get(pools, 2), get(pools, 3)
    kept_pids, gone_pids = pids(kept), pids(gone)
    pools.retire_others(PoolSpec(2))
    assert survivors(gone_pids) == []
    assert all(map(alive, kept_pids))
    assert get(pools, 2) is kept


def test_retiring_all_makes_the_next_pool_fresh(pools: Pools) -> None:
    before = pids(get(pools, 2))
    pools.retire_all()
    assert survivors(before) == []
    assert set(pids(get(pools, 2))).isdisjoint(before)


def test_a_pool_whose_group_cannot_be_opened_is_replaced(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    first = get(pools, 2)
    before = pids(first)
    opened = Pool.open_group

    def fails_once(pool: Pool, name: str, timeout: float, *, of_its_own: bool = False) -> None:
        if pool is first:
            raise RuntimeError("the peers of an earlier test left")
        opened(pool, name, timeout, of_its_own=of_its_own)

    monkeypatch.setattr(Pool, "open_group", fails_once)
    second = get(pools, 2)
    assert second is not first
    assert survivors(before) == []
    assert len(pids(second)) == 2
