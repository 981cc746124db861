"""Which node gets how many ranks, and which of them sees what."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.ranks.placement import Capacity, NoPlaceError, deal
from pytest_gpuperf.ranks.spec import (
    SOCKET_INTERFACES,
    VISIBLE,
    Node,
    Opening,
    Place,
    PoolSpec,
    make_pool_environ,
    make_rank_environ,
)

ALONE = Capacity((8,), gpus=True, clustered=False)
TWO = Capacity((8, 8), gpus=True)
CPUS = Capacity((2, 2), gpus=False)


@pytest.mark.parametrize(
    ("size", "capacity", "asked", "counts"),
    [
        (4, TWO, {}, [4]),
        (8, TWO, {}, [8]),
        (9, TWO, {}, [8, 1]),
        (16, TWO, {}, [8, 8]),
        (12, Capacity((8, 4), gpus=True), {}, [8, 4]),
        (4, TWO, {"nodes": 2}, [2, 2]),
        (8, TWO, {"nodes": 1}, [8]),
        (4, CPUS, {"nodes": 1}, [4]),
        (8, ALONE, {"nodes": 1}, [8]),
        (4, TWO, {"per_node": 1}, None),
        (2, TWO, {"per_node": 1}, [1, 1]),
        (4, CPUS, {}, [2, 2]),
        (5, CPUS, {}, [3, 2]),
        (1, CPUS, {}, [1]),
        (8, CPUS, {"nodes": 2}, [4, 4]),
        (3, Capacity((1,) * 4, gpus=False), {"per_node": 1}, [1, 1, 1]),
    ],
)
def test_ranks_are_packed_unless_something_else_is_asked_for(
    size: int, capacity: Capacity, asked: dict[str, int], counts: list[int] | None
) -> None:
    if counts is None:
        with pytest.raises(NoPlaceError):
            deal(size, capacity, **asked)
    else:
        assert deal(size, capacity, **asked) == counts


@pytest.mark.parametrize(
    ("size", "capacity", "asked", "reason"),
    [
        (16, ALONE, {}, "needs 16 GPUs, 8 in use (--gpus)"),
        (17, TWO, {}, "needs 17 GPUs, 16 in use on 2 nodes (--gpus)"),
        (16, ALONE, {"nodes": 2}, "needs 2 nodes, the run has 1: pass --cluster"),
        (3, TWO, {"nodes": 3}, "needs 3 nodes, the run has 2"),
        (3, CPUS, {"nodes": 3}, "needs 3 nodes, the run has 2"),
        (3, TWO, {"nodes": 2}, "3 ranks cannot be dealt evenly to 2 nodes"),
        (3, TWO, {"per_node": 2}, "3 ranks cannot be 2 on each node"),
        (
            16,
            Capacity((8, 4), gpus=True),
            {"nodes": 2},
            "needs 2 nodes of 8 GPUs, the run's nodes have 8 and 4 (--gpus)",
        ),
        (
            2,
            Capacity((1, 1), gpus=True),
            {"nodes": 1},
            "needs one node of 2 GPUs, the run's nodes have 1 and 1 (--gpus)",
        ),
        (16, ALONE, {"nodes": 1}, "needs 16 GPUs, 8 in use (--gpus)"),
        (1, Capacity((), gpus=False), {}, "no node is left"),
    ],
)
def test_what_does_not_fit_says_why(size: int, capacity: Capacity, asked: dict[str, int], reason: str) -> None:
    with pytest.raises(NoPlaceError) as caught:
        deal(size, capacity, **asked)
    assert str(caught.value) == reason


@given(st.integers(1, 40), st.lists(st.integers(1, 8), min_size=1, max_size=5), st.booleans())
def test_no_rank_is_lost_and_no_gpu_has_two(size: int, slots: list[int], gpus: bool) -> None:
    try:
        counts = deal(size, Capacity(tuple(slots), gpus))
    except NoPlaceError:
        assert gpus
        assert size > sum(slots)
        return
    assert sum(counts) == size
    assert min(counts) >= 1
    if gpus:
        assert all(count <= room for count, room in zip(counts, slots, strict=False))


SPEC = PoolSpec(3, ("GPU-0", "GPU-1", "GPU-2"), nodes=(Node("a", "10.0.0.1", 2), Node("b", "10.0.0.2", 1)))


def test_a_rank_knows_its_place() -> None:
    first, last = Place(0, 2, 0, 2, "10.0.0.1", "a"), Place(0, 1, 1, 2, "10.0.0.1", "b")
    assert list(map(SPEC.place, range(3))) == [first, replace(first, local_rank=1), last]
    assert PoolSpec(2).place(1) == Place(1, 2)


def test_a_rank_is_named_with_its_node_and_gpu() -> None:
    assert SPEC.name(1) == "rank 1 of 3 (node a, GPU 1, nccl)"
    assert SPEC.name(2) == "rank 2 of 3 (node b, GPU 0, nccl)"
    assert PoolSpec(2).name(1) == "rank 1 of 2 (gloo)"


def test_a_rank_sees_the_gpus_of_its_node_alone() -> None:
    environ = make_pool_environ(SPEC, {"A": "1"})
    assert [make_rank_environ(rank, SPEC, environ)[VISIBLE] for rank in range(3)] == [
        "GPU-0,GPU-1",
        "GPU-0,GPU-1",
        "GPU-2",
    ]
    assert not set(SOCKET_INTERFACES) & set(environ)  # which each node finds


def test_the_launchers_variables_tell_the_nodes() -> None:
    spec = PoolSpec(3, opening=Opening.LAUNCHER, nodes=SPEC.nodes)
    last = make_rank_environ(2, spec, {})
    assert (last["RANK"], last["LOCAL_RANK"], last["GROUP_RANK"], last["LOCAL_WORLD_SIZE"]) == ("2", "0", "1", "1")
    assert (last["GROUP_WORLD_SIZE"], last["MASTER_ADDR"]) == ("2", "10.0.0.1")
