"""The warm pools of a run: which is used again, and which has to go."""

import os
import signal
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from pytest_gpuperf.ranks.channel import EMPTY
from pytest_gpuperf.ranks.failures import LaunchError, RankDied
from pytest_gpuperf.ranks.forkserver_client import ForkserverClient
from pytest_gpuperf.ranks.local_ranks import LocalNode
from pytest_gpuperf.ranks.pool import Pool
from pytest_gpuperf.ranks.pools import Pools
from pytest_gpuperf.ranks.spec import PoolSpec
from tests.ranks.processes import alive, survivors


@pytest.fixture
def pools() -> Iterator[Pools]:
    pools = Pools(LocalNode(ForkserverClient(("tests.ranks.light_rank",))))
    yield pools
    pools.close()


def get(pools: Pools, world_size: int) -> Pool:
    return pools.get(PoolSpec(world_size), "group", 60)


def pids(pool: Pool) -> list[int]:
    return [int(answer.stream) for answer in pool.run(EMPTY, program="p", seed=0, timeout=60)]


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
    pools.retire_all(but=PoolSpec(2))
    assert survivors(gone_pids) == []
    assert all(map(alive, kept_pids))
    assert get(pools, 2) is kept


def test_retiring_all_makes_the_next_pool_fresh(pools: Pools) -> None:
    before = pids(get(pools, 2))
    pools.retire_all()
    assert survivors(before) == []
    assert set(pids(get(pools, 2))).isdisjoint(before)


def test_ranks_that_nobody_waits_for_end_while_the_next_ones_start(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process with much of a GPU's memory takes half a second to end."""
    before = pids(get(pools, 2))
    there: list[int] = []
    start = LocalNode.start

    def started(node: LocalNode, *args: Any, **kwargs: Any) -> Any:
        there.extend(filter(alive, before))
        return start(node, *args, **kwargs)

    monkeypatch.setattr(LocalNode, "start", started)
    for pid in before:
        os.kill(pid, signal.SIGSTOP)  # it leaves when it is killed
    pools.retire_all(wait=False)
    after = get(pools, 2)
    assert there == before
    assert survivors(before, within=0.0) == []
    assert set(pids(after)).isdisjoint(before)


def test_ranks_that_are_asked_for_again_wait_for_those_that_leave(pools: Pools) -> None:
    kept, gone = get(pools, 2), get(pools, 3)
    gone_pids = pids(gone)
    pools.retire_all(but=PoolSpec(2), wait=False)
    assert get(pools, 2) is kept
    assert survivors(gone_pids, within=0.0) == []


@pytest.mark.parametrize("leaving", [True, False])
def test_ranks_that_do_not_start_beside_those_that_leave_start_after_them(
    pools: Pools, monkeypatch: pytest.MonkeyPatch, leaving: bool
) -> None:
    """As on a GPU whose memory the leaving ones have."""
    before = pids(get(pools, 2))
    tries: list[list[int]] = []
    start = LocalNode.start

    def started(node: LocalNode, *args: Any, **kwargs: Any) -> Any:
        tries.append(survivors(before, within=0.0) if tries else [])
        if len(tries) == 1:
            raise LaunchError("out of memory")
        return start(node, *args, **kwargs)

    monkeypatch.setattr(LocalNode, "start", started)
    for pid in before if leaving else []:
        os.kill(pid, signal.SIGSTOP)  # it leaves when it is killed
    pools.retire_all(wait=not leaving)
    if leaving:
        assert set(pids(get(pools, 2))).isdisjoint(before)
        assert tries == [[], []]
    else:
        with pytest.raises(LaunchError, match=r"^out of memory$"):
            get(pools, 2)


def test_a_pool_whose_group_cannot_be_opened_is_replaced(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    first = get(pools, 2)
    before = pids(first)
    opened = Pool.open_group

    def fails_once(pool: Pool, name: str, timeout: float) -> None:
        if pool is first:
            raise RuntimeError("the peers of an earlier test left")
        opened(pool, name, timeout)

    monkeypatch.setattr(Pool, "open_group", fails_once)
    second = get(pools, 2)
    assert second is not first
    assert survivors(before) == []
    assert len(pids(second)) == 2


def test_the_gpus_of_pools_are_those_with_processes(pools: Pools) -> None:
    kept, gone = (pools.get(PoolSpec(2, gpus), "group", 60) for gpus in (("GPU-a", "GPU-b"), ("GPU-b", "GPU-c")))
    get(pools, 2)
    assert pools.gpus == {"GPU-a", "GPU-b", "GPU-c"}
    assert pools.warm(2) == [("GPU-b", "GPU-c"), ("GPU-a", "GPU-b")]  # the last one first
    assert pools.warm(3) == []
    assert pools.get(kept.spec, "group", 60) is kept
    assert pools.warm(2) == [("GPU-a", "GPU-b"), ("GPU-b", "GPU-c")]
    gone.kill()
    assert pools.gpus == {"GPU-a", "GPU-b"}
    assert pools.warm(2) == [kept.spec.gpus]


def test_of_one_world_size_the_pools_used_last_are_kept(pools: Pools) -> None:
    def on(*gpus: str) -> Pool:
        return pools.get(PoolSpec(len(gpus), gpus), "group", 60)

    first, second, alone = on("GPU-a", "GPU-b"), on("GPU-b", "GPU-c"), on("GPU-a")
    cores = get(pools, 2)
    first_pids, second_pids = pids(first), pids(second)
    on("GPU-a", "GPU-b")
    on("GPU-c", "GPU-d")
    assert survivors(second_pids) == []
    assert all(map(alive, first_pids))
    assert pools.warm(2) == [("GPU-c", "GPU-d"), ("GPU-a", "GPU-b")]
    assert on("GPU-a") is alone  # another size
    assert get(pools, 2) is cores  # on no GPU


def test_ranks_with_an_environment_of_their_own_end_by_it(pools: Pools) -> None:
    own = PoolSpec(2, environ=(("A", "1"),))
    kept, gone = get(pools, 2), pools.get(own, "group", 60)
    assert kept is not gone
    gone_pids = pids(gone)
    pools.retire_with(own.environ)
    assert survivors(gone_pids) == []
    assert get(pools, 2) is kept


def test_of_ranks_with_environments_of_their_own_only_those_of_one_live(pools: Pools) -> None:
    def of(value: str, world_size: int) -> Pool:
        return pools.get(PoolSpec(world_size, environ=(("A", value),)), "group", 60)

    plain, first, smaller = get(pools, 2), of("1", 2), of("1", 1)
    gone = [*pids(first), *pids(smaller)]
    assert of("1", 2) is first  # tests of the same environment share them
    assert get(pools, 2) is plain
    second = of("2", 2)
    assert survivors(gone) == []
    assert get(pools, 2) is plain
    assert of("2", 2) is second


def test_a_pool_is_replaced_when_the_environment_has_changed(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    first = get(pools, 2)
    before = pids(first)
    monkeypatch.setenv("GPUPERF_TEST_VARIABLE", "changed")
    assert get(pools, 2) is not first
    assert survivors(before) == []


def test_only_pools_of_gpus_rest_and_the_one_in_use_does_not(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    rested: list[PoolSpec] = []

    def settle(pool: Pool, *, rest: bool = False) -> list[str]:
        if rest:
            rested.append(pool.spec)
        return []

    monkeypatch.setattr(Pool, "settle", settle)
    specs = [PoolSpec(1, ("GPU-a",)), PoolSpec(1, ("GPU-b",)), PoolSpec(2)]
    for spec in specs:
        pools.get(spec, "group", 60)
    pools.rest(but=specs[0])
    assert rested == specs[1:2]
    pools.rest()
    assert set(rested) == set(specs[:2])
    assert len(rested) == 2  # what rests already is left alone


def died(pool: Pool, *, rest: bool = False) -> list[str]:
    raise RankDied(f"rank 0 of {pool.spec.world_size} was killed")


def test_a_rank_of_idle_ranks_that_died_is_told_to_the_next_test_and_the_others_rest(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    for spec in (PoolSpec(1, ("GPU-a",)), PoolSpec(2, ("GPU-a", "GPU-b"))):
        pools.get(spec, "group", 60)
    settle = mock.Mock(side_effect=[RankDied("an idle one was killed"), []])
    monkeypatch.setattr(Pool, "settle", settle)
    pools.rest()
    assert settle.call_count == 2
    assert str(pools.take_death()) == "an idle one was killed"
    assert pools.take_death() is None


def test_every_pool_is_settled_though_a_rank_of_one_has_died(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    def settle(pool: Pool) -> list[str]:
        return ["rank 2: left"] if pool.spec.world_size == 3 else died(pool)

    monkeypatch.setattr(Pool, "settle", settle)
    for size in (1, 2, 3):
        get(pools, size)
    with pytest.raises(RankDied) as caught:
        pools.settle()
    assert str(caught.value) == "rank 0 of 1 was killed"
    assert caught.value.__notes__ == ["rank 0 of 2 was killed", "left behind besides: rank 2: left"]
    assert pools.settle() == []


def test_pools_are_settled_once_after_their_use(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pool, "settle", lambda pool: [f"rank 0 of {pool.spec.world_size}: left"])
    assert pools.settle() == []
    get(pools, 2)
    get(pools, 3)
    assert sorted(pools.settle()) == ["rank 0 of 2: left", "rank 0 of 3: left"]
    assert pools.settle() == []
    get(pools, 3)
    assert pools.settle() == ["rank 0 of 3: left"]
