"""What arrives through symmetric memory is what was sent, and its sums are sums: exactly, on whole numbers.

Those stay far below what their dtype holds exactly: sums over 8 ranks below 2**7 in bfloat16, and products' sums
below 15 * 15 * 64 * 8 < 2**17 in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Context, Ranks
from suites.shared.comparison import assert_each, assert_unlike
from suites.shared.peer_memory import MappedFiles, PeerMemory
from suites.shared.step import Step, each_step, once
from suites.shared.strategies import float_dtypes, seeds, shapes, worlds
from suites.symmetric_memory.programs import operations as programs
from suites.symmetric_memory.programs.arena import ALIGNMENT
from suites.symmetric_memory.programs.operations import Shape

pytestmark = pytest.mark.ranks(2, nodes=1)

STEPS = 2
LONG = (70_001,)  # elements; beyond what gloo, or a copy of ours, might move at once

# symm_mem's kernels add up these dtypes only, and move 4 bytes at least: numbers of elements are even.
summed_dtypes = st.sampled_from([torch.float32, torch.bfloat16])
even_shapes = st.tuples(st.integers(1, 40), st.sampled_from([2, 6, 64]))


def all_sent(degree: int, *, shape: Shape, dtype: torch.dtype, seed: int, step: int = 0) -> list[torch.Tensor]:
    """What each of so many ranks sends at a step."""
    kwargs: dict[str, Any] = {"world_size": degree, "shape": shape, "dtype": dtype, "seed": seed, "step": step}
    return [programs.sent(rank, **kwargs) for rank in range(degree)]


def assert_sums(
    ranks: Ranks,
    program: Callable[..., Step[torch.Tensor]],
    *,
    shape: Shape,
    dtype: torch.dtype,
    seed: int,
    steps: int = 1,
    **kwargs: str,
) -> None:
    """Every rank has the sum; of several steps, each has inputs of its own."""
    results = ranks.run(each_step, program, steps, shape=shape, dtype=dtype, seed=seed, **kwargs)
    for step in range(steps):
        total = torch.stack(all_sent(ranks.world_size, shape=shape, dtype=dtype, seed=seed, step=step)).sum(dim=0)
        assert_each([of_rank[step] for of_rank in results], [total] * ranks.world_size, f"sum of step {step}")


def test_no_two_ranks_and_no_two_steps_send_the_same() -> None:
    """Were they alike, what is left over from the step before, or of the rank itself, would be right."""
    shared: dict[str, Any] = {"shape": (99,), "dtype": torch.float32, "seed": 1}
    sent = {f"step {step}": all_sent(3, step=step, **shared) for step in range(programs.TURNS)}
    assert_unlike(
        {f"rank {rank}, {step}": tensor for step, of_ranks in sent.items() for rank, tensor in enumerate(of_ranks)}
    )


@pytest.mark.ranks(2, 4, 8, nodes=1, device="cuda")
@pytest.mark.parametrize("operation", programs.ONE_AND_TWO_SHOT)
@given(shape=even_shapes, dtype=summed_dtypes, seed=seeds)
def test_all_reduce(ranks: Ranks, operation: str, shape: Shape, dtype: torch.dtype, seed: int) -> None:
    assert_sums(ranks, programs.all_reduce, operation=operation, shape=shape, dtype=dtype, seed=seed)


@pytest.mark.ranks(2, 4, 8, nodes=1, device="cuda")
@pytest.mark.parametrize("operation", programs.MULTICAST)
def test_all_reduce_by_multicast(ranks: Ranks, operation: str) -> None:
    assert_sums(ranks, programs.all_reduce, operation=operation, shape=(64, 64), dtype=torch.bfloat16, seed=1)


@pytest.mark.parametrize(("variable", "value"), [("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"), ("NCCL_NVLS_ENABLE", "0")])
def test_multicast_is_left_alone_where_the_environment_forbids_it(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    for name in ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "NCCL_NVLS_ENABLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    context = Context(rank=0, world_size=2, backend="nccl", device=torch.device("cuda", 0), seed=1)
    assert programs.no_multicast(context) == f"NVLink multicast is off: {variable}={value}"
    with pytest.raises(pytest.skip.Exception, match=f"multicast is off: {variable}={value}"):
        programs.all_reduce(context, operation=programs.MULTICAST[0], shape=(2,), dtype=torch.float32, seed=1)


@pytest.mark.ranks(2, nodes=1, device="cuda")
@pytest.mark.parametrize("operation", programs.ONE_AND_TWO_SHOT)
def test_a_dtype_that_is_not_summed_is_refused(ranks: Ranks, operation: str) -> None:
    with pytest.raises(RuntimeError, match="not implemented for 'Double'"):
        ranks.run(once, programs.all_reduce, operation=operation, shape=(64,), dtype=torch.float64, seed=1)


def my_all_reduce(ctx: Context, *, shape: Shape, dtype: torch.dtype, seed: int) -> Step[torch.Tensor]:
    """An implementation of a user's own: all gathered, then added up."""
    turns = programs.in_turn(ctx, shape=shape, dtype=dtype, seed=seed)

    def step() -> torch.Tensor:
        x = next(turns)
        parts = [torch.empty_like(x) for _ in range(ctx.world_size)]
        torch.distributed.all_gather(parts, x)
        return torch.stack(parts).sum(dim=0)

    return step


@pytest.mark.ranks(3, nodes=1)
@given(
    data=st.data(),
    program=st.sampled_from([my_all_reduce, programs.all_reduce_by_gets]),
    shape=even_shapes,
    dtype=summed_dtypes,
    seed=seeds,
)
def test_your_own_all_reduce(
    ranks: Ranks,
    data: st.DataObject,
    program: Callable[..., Step[torch.Tensor]],
    shape: Shape,
    dtype: torch.dtype,
    seed: int,
) -> None:
    assert_sums(data.draw(worlds(ranks)), program, shape=shape, dtype=dtype, seed=seed, steps=STEPS)


@pytest.mark.ranks(2, 4, 8, nodes=1, device="cuda")
@given(shape=shapes, dtype=float_dtypes, seed=seeds, symmetric=st.booleans())
def test_low_contention_all_gather(ranks: Ranks, shape: Shape, dtype: torch.dtype, seed: int, symmetric: bool) -> None:
    results = ranks.run(once, programs.all_gather, shape=shape, dtype=dtype, seed=seed, symmetric_input=symmetric)
    expected = torch.cat(all_sent(ranks.world_size, shape=shape, dtype=dtype, seed=seed))
    assert_each(results, [expected] * ranks.world_size, "gathered tensor")


@pytest.mark.ranks(2, 4, 8, nodes=1, device="cuda")
@given(shape=shapes, dtype=summed_dtypes, seed=seeds, symmetric=st.booleans())
def test_low_contention_reduce_scatter(
    ranks: Ranks, shape: Shape, dtype: torch.dtype, seed: int, symmetric: bool
) -> None:
    degree = ranks.world_size
    results = ranks.run(once, programs.reduce_scatter, shape=shape, dtype=dtype, seed=seed, symmetric_input=symmetric)
    total = torch.stack(all_sent(degree, shape=(degree * shape[0], *shape[1:]), dtype=dtype, seed=seed)).sum(dim=0)
    assert_each(results, list(total.chunk(degree)), "part of the sum")


def assert_products(ranks: Ranks, program: Callable[..., Step[torch.Tensor]], *, rows: int, k: int, seed: int) -> None:
    sizes = {"m": rows * ranks.world_size, "k": k, "n": 16}
    results = ranks.run(once, program, seed=seed, **sizes)
    factors = [programs.matmul_inputs(rank, seed=seed, **sizes) for rank in range(ranks.world_size)]
    # One product of all ranks' factors side by side, where the programs add up one product for each rank.
    whole = torch.cat([a for a, _ in factors], dim=1).double() @ torch.cat([b for _, b in factors]).double()
    assert_each([result.double() for result in results], list(whole.chunk(ranks.world_size)), "product")


@given(rows=st.integers(1, 4), k=st.integers(1, 64), seed=seeds)
def test_matmul_then_reduce_scatter(ranks: Ranks, rows: int, k: int, seed: int) -> None:
    assert_products(ranks, programs.matmul_then_reduce_scatter, rows=rows, k=k, seed=seed)


@pytest.mark.ranks(2, 4, 8, nodes=1, device="cuda")
@pytest.mark.parametrize("rows", [16, 48])
def test_fused_matmul_reduce_scatter(ranks: Ranks, rows: int) -> None:
    assert_products(ranks, programs.fused_matmul_reduce_scatter, rows=rows, k=64, seed=rows)


def assert_shifted(
    ranks: Ranks,
    program: Callable[..., Step[torch.Tensor]],
    *,
    shape: Shape,
    dtype: torch.dtype,
    seed: int,
    **kwargs: int,
) -> None:
    degree, distance = ranks.world_size, kwargs["distance"]
    results = ranks.run(each_step, program, STEPS, shape=shape, dtype=dtype, seed=seed, **kwargs)
    for step in range(STEPS):
        sent = all_sent(degree, shape=shape, dtype=dtype, seed=seed, step=step)
        expected = [sent[(rank - distance) % degree] for rank in range(degree)]
        assert_each([of_rank[step] for of_rank in results], expected, f"tensor of step {step}")


@pytest.mark.ranks(3, nodes=1)
@given(
    data=st.data(),
    program=st.sampled_from([programs.put, programs.get]),
    shape=shapes,
    dtype=float_dtypes,
    seed=seeds,
    offset=st.integers(0, 8),
)
def test_put_and_get(
    ranks: Ranks,
    data: st.DataObject,
    program: Callable[..., Step[torch.Tensor]],
    shape: Shape,
    dtype: torch.dtype,
    seed: int,
    offset: int,
) -> None:
    world = data.draw(worlds(ranks))
    distance = data.draw(st.integers(1, world.world_size - 1))
    # get_buffer gives views that begin at whole 16 bytes: what the vectors of kernels need.
    aligned = offset * ALIGNMENT // dtype.itemsize
    assert_shifted(world, program, shape=shape, dtype=dtype, seed=seed, distance=distance, offset=aligned)


@pytest.mark.ranks(3, nodes=1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_long_tensors(ranks: Ranks, dtype: torch.dtype) -> None:
    for program in (programs.put, programs.get):
        assert_shifted(ranks, program, shape=LONG, dtype=dtype, seed=1, distance=2)
    assert_sums(ranks, programs.all_reduce_by_gets, shape=LONG, dtype=dtype, seed=1, steps=STEPS)


@pytest.mark.ranks(2, 4, 8, nodes=1, device="cuda")
@given(data=st.data(), shape=shapes, dtype=float_dtypes, seed=seeds)
def test_put_with_signal(ranks: Ranks, data: st.DataObject, shape: Shape, dtype: torch.dtype, seed: int) -> None:
    distance = data.draw(st.integers(1, ranks.world_size - 1))
    assert_shifted(ranks, programs.put_with_signal, shape=shape, dtype=dtype, seed=seed, distance=distance)


@pytest.mark.ranks(4, 8, nodes=1, device="cuda")
@pytest.mark.parametrize("program", [programs.put, programs.get])
def test_put_and_get_on_many_gpus(ranks: Ranks, program: Callable[..., Step[torch.Tensor]]) -> None:
    for distance in range(1, ranks.world_size):
        assert_shifted(ranks, program, shape=(1 << 10,), dtype=torch.bfloat16, seed=distance, distance=distance)


@pytest.mark.ranks(2, device="cpu")
def test_a_view_beyond_the_end_is_refused(ranks: Ranks) -> None:
    def program(ctx: Context) -> None:
        MappedFiles(64).buffer(0, (16,), torch.float32, offset=1)

    with pytest.raises(ValueError, match="a buffer of 64 bytes has no 64 bytes from byte 4 on"):
        ranks.run(program)


@pytest.mark.ranks(2, nodes=1, device="cuda")
def test_a_view_beyond_the_end_is_refused_on_gpus(ranks: Ranks) -> None:
    def program(ctx: Context) -> None:
        # Far beyond: allocations are rounded up to whole pages.
        PeerMemory(ctx, 64).buffer(0, (1 << 30,), torch.float32)

    with pytest.raises(RuntimeError, match="exceeds the allocated size"):
        ranks.run(program)
