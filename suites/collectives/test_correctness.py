"""Every collective gives exactly what its definition says, on integer-valued data that differs by rank."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Ranks
from suites.collectives import programs
from suites.data import once
from suites.strategies import dtypes, float_dtypes, seeds, shapes, worlds

pytestmark = pytest.mark.ranks(2, 4, 8)

Shape = tuple[int, ...]

REDUCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
    "product": torch.mul,
}


def inputs(world: Ranks, shape: Shape, dtype: torch.dtype, seed: int, op: str = "sum") -> list[torch.Tensor]:
    return [
        programs.rank_input(r, shape=shape, dtype=dtype, seed=seed, op=op, world_size=world.world_size)
        for r in range(world.world_size)
    ]


def reduced(op: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    if op == "avg":
        return reduced("sum", tensors) // len(tensors)
    return functools.reduce(REDUCTIONS[op], tensors)


def every(results: list[torch.Tensor], expected: torch.Tensor) -> bool:
    return all(torch.equal(result, expected) for result in results)


@given(data=st.data(), shape=shapes, dtype=dtypes, seed=seeds, op=st.sampled_from(sorted(REDUCTIONS)))
def test_all_reduce(ranks: Ranks, data: st.DataObject, shape: Shape, dtype: torch.dtype, seed: int, op: str) -> None:
    world = data.draw(worlds(ranks))
    results = world.run(once, programs.all_reduce, shape=shape, dtype=dtype, seed=seed, op=op)
    assert every(results, reduced(op, inputs(world, shape, dtype, seed, op)))


@given(shape=shapes, dtype=float_dtypes, seed=seeds)
def test_all_reduce_avg(ranks: Ranks, shape: Shape, dtype: torch.dtype, seed: int) -> None:
    # The test's own 2, 4 or 8 ranks: NCCL multiplies by 1/R, which is exact for powers of two alone.
    results = ranks.run(once, programs.all_reduce, shape=shape, dtype=dtype, seed=seed, op="avg")
    assert every(results, reduced("avg", inputs(ranks, shape, dtype, seed, "avg")))


@given(data=st.data(), shape=shapes, dtype=dtypes, seed=seeds)
def test_all_gather(ranks: Ranks, data: st.DataObject, shape: Shape, dtype: torch.dtype, seed: int) -> None:
    world = data.draw(worlds(ranks))
    results = world.run(once, programs.all_gather, shape=shape, dtype=dtype, seed=seed)
    assert every(results, torch.cat(inputs(world, shape, dtype, seed)))


@given(data=st.data(), shape=shapes, dtype=dtypes, seed=seeds, op=st.sampled_from(["sum", "min", "max"]))
def test_reduce_scatter(
    ranks: Ranks, data: st.DataObject, shape: Shape, dtype: torch.dtype, seed: int, op: str
) -> None:
    world = data.draw(worlds(ranks))
    results = world.run(once, programs.reduce_scatter, shape=shape, dtype=dtype, seed=seed, op=op)
    whole = (world.world_size * shape[0], *shape[1:])
    expected = reduced(op, inputs(world, whole, dtype, seed, op)).chunk(world.world_size)
    assert all(torch.equal(result, part) for result, part in zip(results, expected, strict=True))


@given(data=st.data(), rows=st.integers(1, 4), dtype=dtypes, seed=seeds)
def test_all_reduce_is_reduce_scatter_then_all_gather(
    ranks: Ranks, data: st.DataObject, rows: int, dtype: torch.dtype, seed: int
) -> None:
    world = data.draw(worlds(ranks))
    shape = (rows * world.world_size, 3)
    whole = world.run(once, programs.all_reduce, shape=shape, dtype=dtype, seed=seed)
    halves = world.run(once, programs.reduce_scatter_then_all_gather, shape=shape, dtype=dtype, seed=seed)
    assert every(whole, reduced("sum", inputs(world, shape, dtype, seed)))
    assert all(torch.equal(one, other) for one, other in zip(whole, halves, strict=True))


@given(data=st.data(), shape=shapes, dtype=dtypes, seed=seeds)
def test_broadcast(ranks: Ranks, data: st.DataObject, shape: Shape, dtype: torch.dtype, seed: int) -> None:
    world = data.draw(worlds(ranks))
    root = data.draw(st.integers(0, world.world_size - 1))
    results = world.run(once, programs.broadcast, shape=shape, dtype=dtype, seed=seed, root=root)
    assert every(results, inputs(world, shape, dtype, seed)[root])


@given(data=st.data(), shape=shapes, dtype=dtypes, seed=seeds, op=st.sampled_from(sorted(REDUCTIONS)))
def test_reduce(ranks: Ranks, data: st.DataObject, shape: Shape, dtype: torch.dtype, seed: int, op: str) -> None:
    world = data.draw(worlds(ranks))
    root = data.draw(st.integers(0, world.world_size - 1))
    results = world.run(once, programs.reduce, shape=shape, dtype=dtype, seed=seed, root=root, op=op)
    assert torch.equal(results[root], reduced(op, inputs(world, shape, dtype, seed, op)))


@given(data=st.data(), shape=shapes, dtype=dtypes, seed=seeds)
def test_gather(ranks: Ranks, data: st.DataObject, shape: Shape, dtype: torch.dtype, seed: int) -> None:
    world = data.draw(worlds(ranks))
    root = data.draw(st.integers(0, world.world_size - 1))
    results = world.run(once, programs.gather, shape=shape, dtype=dtype, seed=seed, root=root)
    assert torch.equal(results[root], torch.stack(inputs(world, shape, dtype, seed)))
    assert [r for r, result in enumerate(results) if result is not None] == [root]


@given(data=st.data(), shape=shapes, dtype=dtypes, seed=seeds)
def test_scatter(ranks: Ranks, data: st.DataObject, shape: Shape, dtype: torch.dtype, seed: int) -> None:
    world = data.draw(worlds(ranks))
    root = data.draw(st.integers(0, world.world_size - 1))
    results = world.run(once, programs.scatter, shape=shape, dtype=dtype, seed=seed, root=root)
    expected = inputs(world, shape, dtype, seed)
    assert all(torch.equal(result, part) for result, part in zip(results, expected, strict=True))


@given(data=st.data(), shape=shapes, dtype=dtypes, seed=seeds)
def test_all_to_all(ranks: Ranks, data: st.DataObject, shape: Shape, dtype: torch.dtype, seed: int) -> None:
    world = data.draw(worlds(ranks))
    results = world.run(once, programs.all_to_all, shape=shape, dtype=dtype, seed=seed)
    whole = (world.world_size * shape[0], *shape[1:])
    sent = [tensor.chunk(world.world_size) for tensor in inputs(world, whole, dtype, seed)]
    for receiver, result in enumerate(results):
        assert torch.equal(result, torch.cat([parts[receiver] for parts in sent]))


@given(data=st.data(), dtype=dtypes, seed=seeds)
def test_all_to_all_uneven(ranks: Ranks, data: st.DataObject, dtype: torch.dtype, seed: int) -> None:
    world = data.draw(worlds(ranks))
    n = world.world_size
    row = st.lists(st.integers(0, 5), min_size=n, max_size=n)
    splits = data.draw(st.lists(row, min_size=n, max_size=n))
    results = world.run(once, programs.all_to_all_uneven, splits=splits, dtype=dtype, seed=seed)
    sent = [programs.rank_input(r, shape=(sum(splits[r]),), dtype=dtype, seed=seed).split(splits[r]) for r in range(n)]
    for receiver, result in enumerate(results):
        assert torch.equal(result, torch.cat([parts[receiver] for parts in sent]))


@given(data=st.data(), shape=shapes, dtype=dtypes, seed=seeds)
def test_send_recv_ring(ranks: Ranks, data: st.DataObject, shape: Shape, dtype: torch.dtype, seed: int) -> None:
    world = data.draw(worlds(ranks))
    results = world.run(once, programs.send_recv, shape=shape, dtype=dtype, seed=seed)
    expected = inputs(world, shape, dtype, seed)
    assert all(torch.equal(result, expected[r - 1]) for r, result in enumerate(results))


def test_barrier(ranks: Ranks) -> None:
    for late in range(ranks.world_size):
        times = ranks.run(programs.barrier, late=late, seconds=0.02)
        last_came = max(came for came, _ in times)
        assert all(left >= last_came for _, left in times)
