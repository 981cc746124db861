"""Every collective gives exactly what its definition says, on integer-valued data that differs by rank."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Context, Ranks
from suites.collectives import programs
from suites.shared.comparison import assert_close
from suites.shared.inputs import rank_input
from suites.shared.step import Step, once
from suites.shared.strategies import dtypes, float_dtypes, seeds, shapes, worlds

Shape = tuple[int, ...]
Program = Callable[..., Callable[[], torch.Tensor | None]]

REDUCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
    "product": torch.mul,
}
# torch offers no product to a reduce-scatter of gloo.
OPS = {
    "all_reduce": sorted(REDUCTIONS),
    "reduce": sorted(REDUCTIONS),
    "reduce_scatter": ["max", "min", "sum"],
    "reduce_scatter_then_all_gather": ["sum"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A collective, and what each rank should hold after it; None where that is not defined."""

    name: str
    program: Program
    arguments: dict[str, Any]
    expected: list[torch.Tensor | None]


def inputs(world_size: int, shape: Shape, dtype: torch.dtype, seed: int, op: str = "sum") -> list[torch.Tensor]:
    return [
        programs.reduction_input(r, shape=shape, dtype=dtype, seed=seed, op=op, world_size=world_size)
        for r in range(world_size)
    ]


def reduced(op: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    if op == "avg":
        return reduced("sum", tensors) // len(tensors)
    return functools.reduce(REDUCTIONS[op], tensors)


def reduction(name: str, world_size: int, shape: Shape, dtype: torch.dtype, seed: int, op: str, root: int) -> Case:
    """A collective that reduces. ``shape`` is a rank's share, of the output or of what is exchanged."""
    whole = (world_size * shape[0], *shape[1:])
    arguments: dict[str, Any] = {"shape": shape, "dtype": dtype, "seed": seed, "op": op}
    expected: list[torch.Tensor | None]
    match name:
        case "all_reduce":
            expected = [reduced(op, inputs(world_size, shape, dtype, seed, op))] * world_size
        case "reduce":
            arguments["root"] = root
            total = reduced(op, inputs(world_size, shape, dtype, seed, op))
            expected = [total if rank == root else None for rank in range(world_size)]
        case "reduce_scatter":
            expected = list(reduced(op, inputs(world_size, whole, dtype, seed, op)).chunk(world_size))
        case "reduce_scatter_then_all_gather":
            arguments["shape"] = whole
            expected = [reduced(op, inputs(world_size, whole, dtype, seed, op))] * world_size
    return Case(name=name, program=getattr(programs, name), arguments=arguments, expected=expected)


def movement(
    name: str, world_size: int, shape: Shape, dtype: torch.dtype, seed: int, root: int, splits: list[list[int]]
) -> Case:
    """A collective that only moves data."""
    own = inputs(world_size, shape, dtype, seed)
    arguments: dict[str, Any] = {"shape": shape, "dtype": dtype, "seed": seed}
    if name in ("broadcast", "gather", "scatter"):
        arguments["root"] = root
    expected: list[torch.Tensor | None]
    match name:
        case "all_gather":
            expected = [torch.cat(own)] * world_size
        case "broadcast":
            expected = [own[root]] * world_size
        case "gather":
            expected = [torch.stack(own) if rank == root else None for rank in range(world_size)]
        case "scatter":
            expected = list(own)
        case "send_recv":
            expected = [own[rank - 1] for rank in range(world_size)]
        case "all_to_all":
            whole = inputs(world_size, (world_size * shape[0], *shape[1:]), dtype, seed)
            sent = [tensor.chunk(world_size) for tensor in whole]
            expected = [torch.cat([parts[receiver] for parts in sent]) for receiver in range(world_size)]
        case "all_to_all_uneven":
            arguments = {"splits": splits, "dtype": dtype, "seed": seed}
            flat = [rank_input(rank, shape=(sum(row),), dtype=dtype, seed=seed) for rank, row in enumerate(splits)]
            sent = [tensor.split(row) for tensor, row in zip(flat, splits, strict=True)]
            expected = [torch.cat([parts[receiver] for parts in sent]) for receiver in range(world_size)]
    return Case(name=name, program=getattr(programs, name), arguments=arguments, expected=expected)


MOVEMENTS = ("all_gather", "all_to_all", "all_to_all_uneven", "broadcast", "gather", "scatter", "send_recv")


def in_turn(ctx: Context, cases: list[tuple[Program, dict[str, Any]]]) -> list[torch.Tensor | None]:
    """What each program's single step returns."""
    return [once(ctx, program, **arguments) for program, arguments in cases]


def check(world: Ranks, cases: list[Case]) -> None:
    """Runs the collectives one after the other, as a program would, and compares with what is expected."""
    results = world.run(in_turn, [(case.program, case.arguments) for case in cases])
    for rank, got in enumerate(results):
        for case, result in zip(cases, got, strict=True):
            expected = case.expected[rank]
            if expected is None:
                # What a reduce leaves on other ranks is not defined; a gather returns None there.
                assert case.name == "reduce" or result is None, f"rank {rank}, {case.name}: {result} instead of None"
            else:
                assert result is not None, f"rank {rank}, {case.name}: None instead of {expected}"
                assert_close(result, expected, f"rank {rank}, {case.name}")


def some_of(names: Iterable[str]) -> st.SearchStrategy[list[str]]:
    """Up to three, one after the other in any order."""
    return st.lists(st.sampled_from(sorted(names)), min_size=1, max_size=3, unique=True)


@pytest.mark.ranks(2, 4, 8)
@given(data=st.data(), names=some_of(OPS), shape=shapes, dtype=dtypes, seed=seeds)
def test_reductions(
    ranks: Ranks, data: st.DataObject, names: list[str], shape: Shape, dtype: torch.dtype, seed: int
) -> None:
    world = data.draw(worlds(ranks))
    size = world.world_size
    root = data.draw(st.integers(0, size - 1))
    ops = {name: data.draw(st.sampled_from(OPS[name])) for name in names}
    check(world, [reduction(name, size, shape, dtype, seed, op, root) for name, op in ops.items()])


@pytest.mark.ranks(2, 4, 8)
@given(shape=shapes, dtype=float_dtypes, seed=seeds)
def test_all_reduce_avg(ranks: Ranks, shape: Shape, dtype: torch.dtype, seed: int) -> None:
    # The test's own 2, 4 or 8 ranks: NCCL multiplies by 1/R, which is exact for powers of two alone.
    check(ranks, [reduction("all_reduce", ranks.world_size, shape, dtype, seed, "avg", root=0)])


@pytest.mark.ranks(2, 4, 8)
@given(data=st.data(), names=some_of(MOVEMENTS), shape=shapes, dtype=dtypes, seed=seeds)
def test_movements(
    ranks: Ranks, data: st.DataObject, names: list[str], shape: Shape, dtype: torch.dtype, seed: int
) -> None:
    world = data.draw(worlds(ranks))
    size = world.world_size
    root = data.draw(st.integers(0, size - 1))
    splits = []
    if "all_to_all_uneven" in names:
        row = st.lists(st.integers(0, 5), min_size=size, max_size=size)
        splits = data.draw(st.lists(row, min_size=size, max_size=size))
    check(world, [movement(name, size, shape, dtype, seed, root, splits) for name in names])


@pytest.mark.ranks(2, 4, 8)
def test_barrier(ranks: Ranks) -> None:
    for late in range(ranks.world_size):
        times = ranks.run(programs.barrier, late=late, seconds=0.02)
        last_came = max(came for came, _ in times)
        assert all(left >= last_came for _, left in times)


FIXED: dict[str, Any] = {"shape": (3, 2), "dtype": torch.float32, "seed": 1, "root": 1}


def usual(name: str, world_size: int) -> Case:
    if name in OPS:
        return reduction(name, world_size, **FIXED, op="sum")
    splits = [[1 + (i + 2 * j) % 3 for j in range(world_size)] for i in range(world_size)]
    return movement(name, world_size, **FIXED, splits=splits)


def own_input(ctx: Context, *, shape: Shape, dtype: torch.dtype, seed: int, **_: Any) -> torch.Tensor:
    return rank_input(ctx.rank, shape=shape, dtype=dtype, seed=seed).to(ctx.device)


def does_nothing(ctx: Context, **arguments: Any) -> Step[torch.Tensor]:
    x = own_input(ctx, **arguments)
    return lambda: x


def from_another_root(ctx: Context, *, root: int, **arguments: Any) -> Step[torch.Tensor]:
    return programs.broadcast(ctx, root=0, **arguments)


def without_the_last_rank(ctx: Context, *, op: str, **arguments: Any) -> Step[torch.Tensor]:
    x = own_input(ctx, **arguments) * (ctx.rank < ctx.world_size - 1)

    def step() -> torch.Tensor:
        dist.all_reduce(x)
        return x

    return step


def in_another_order(ctx: Context, **arguments: Any) -> Step[torch.Tensor]:
    step = programs.all_gather(ctx, **arguments)
    return lambda: step().roll(arguments["shape"][0], 0)


def to_the_rank_before(ctx: Context, *, root: int, **arguments: Any) -> Step[torch.Tensor]:
    step = programs.scatter(ctx, root=root, **arguments)
    parts = [torch.empty_like(own_input(ctx, **arguments)) for _ in range(ctx.world_size)]

    def shifted() -> torch.Tensor:
        dist.all_gather(parts, step())
        return parts[(ctx.rank + 1) % ctx.world_size]

    return shifted


def the_other_way_round(ctx: Context, **arguments: Any) -> Step[torch.Tensor]:
    x = own_input(ctx, **arguments)
    out = torch.empty_like(x)
    before, after = (ctx.rank - 1) % ctx.world_size, (ctx.rank + 1) % ctx.world_size

    def step() -> torch.Tensor:
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, before), dist.P2POp(dist.irecv, out, after)]):
            work.wait()
        return out

    return step


@pytest.mark.deliberate_break
@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("all_reduce", without_the_last_rank),
        ("reduce_scatter", does_nothing),
        ("broadcast", from_another_root),
        ("all_gather", in_another_order),
        ("scatter", to_the_rank_before),
        ("send_recv", the_other_way_round),
    ],
    ids=lambda item: item if isinstance(item, str) else item.__name__,
)
def test_a_broken_collective_is_found(ranks: Ranks, name: str, broken: Program) -> None:
    case = usual(name, ranks.world_size)
    check(ranks, [case])
    with pytest.raises(AssertionError, match=f"^rank 0, {name}: "):
        check(ranks, [dataclasses.replace(case, program=broken)])


@pytest.mark.ranks(2, 4, 8)
def test_your_own_collective(ranks: Ranks) -> None:
    """Yours in place of ours: a program that takes the same arguments and returns the step."""

    def all_reduce_by_gathering(ctx: Context, *, op: str, **arguments: Any) -> Step[torch.Tensor]:
        x = own_input(ctx, **arguments)
        parts = [torch.empty_like(x) for _ in range(ctx.world_size)]

        def step() -> torch.Tensor:
            dist.all_gather(parts, x)
            return torch.stack(parts).sum(dim=0)

        return step

    check(ranks, [dataclasses.replace(usual("all_reduce", ranks.world_size), program=all_reduce_by_gathering)])


@pytest.mark.ranks(2)
def test_what_makes_no_sense_is_refused(ranks: Ranks) -> None:
    arguments = {"dtype": torch.float32, "seed": 1}
    with pytest.raises(ValueError, match="3 rows cannot be scattered evenly over 2 ranks"):
        ranks.run(once, programs.reduce_scatter_then_all_gather, shape=(3, 2), **arguments)
    with pytest.raises(ValueError, match="splits of 2 ranks are 2 rows of 2, got rows of 2 and 1"):
        ranks.run(once, programs.all_to_all_uneven, splits=[[1, 2], [1]], **arguments)
