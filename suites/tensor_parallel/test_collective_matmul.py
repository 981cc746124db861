"""A product with its collective, one after the other or in one, is the product of the whole matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pytest_gpuperf import Context, Ranks
from suites.shared.comparison import assert_close
from suites.shared.step import once
from suites.shared.traffic import Traffic
from suites.tensor_parallel.programs import collective_matmul as programs
from suites.tensor_parallel.reference import DTYPE

pytestmark = pytest.mark.ranks(2, 4)

Operands = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def product_of(
    ctx: Context, operands: Operands, program: Callable[..., Callable[[], torch.Tensor]], **sizes: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What this rank multiplied, and what the program's step returned."""
    return *operands(ctx, **sizes), once(ctx, program, **sizes)


def rounding(k: int, a: torch.Tensor, b: torch.Tensor) -> float:
    """How far two computed products of K summands may be from each other.

    A sum of k products is off by at most k * u of the sum of their magnitudes (Higham, Accuracy and Stability, section
    3.1), u = 2**-53; that sum is at most |row of a| * |column of b|; once here and once on the rank.
    """
    return 2 * k * 2**-53 * float(a.norm(dim=1).max() * b.norm(dim=0).max())


def assert_differ(tensors: list[torch.Tensor]) -> None:
    """Equal inputs on all ranks would hide who computed what."""
    assert len({tuple(tensor.flatten().tolist()) for tensor in tensors}) == len(tensors)


def assert_gathered_products(ranks: Ranks, program: Callable[..., Callable[[], torch.Tensor]], rows: int) -> None:
    degree, k = ranks.world_size, 64
    sizes = {"m": rows * degree, "k": k, "n": 16 * degree}
    results = ranks.run(product_of, programs.matmul_inputs, program, dtype=DTYPE, **sizes)
    a = torch.cat([shard_of_a for shard_of_a, _, _ in results])
    for rank, (_, b, product) in enumerate(results):
        assert_close(product, a @ b, f"rank {rank}", atol=rounding(k, a, b))
    assert_differ([b for _, b, _ in results])
    assert len(a.unique(dim=0)) == len(a)


def assert_scattered_products(ranks: Ranks, program: Callable[..., Callable[[], torch.Tensor]], rows: int) -> None:
    degree, k = ranks.world_size, 16 * ranks.world_size
    sizes = {"m": rows * degree, "k": k, "n": 32}
    results = ranks.run(product_of, programs.products_to_sum, program, dtype=DTYPE, **sizes)
    a, b = torch.cat([a for a, _, _ in results], 1), torch.cat([b for _, b, _ in results])
    for rank, part in enumerate((a @ b).chunk(degree)):
        assert_close(results[rank][2], part, f"rank {rank}", atol=rounding(k, a, b))
    assert_differ([b for _, b, _ in results])


@pytest.mark.parametrize("rows", [1, 7])
def test_all_gather_then_matmul(ranks: Ranks, rows: int) -> None:
    assert_gathered_products(ranks, programs.all_gather_then_matmul, rows)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("rows", [1, 7])
def test_all_gather_beside_matmul(ranks: Ranks, rows: int) -> None:
    assert_gathered_products(ranks, programs.all_gather_beside_matmul, rows)


@pytest.mark.ranks(2, 4, 8, nodes=1, device="cuda")
@pytest.mark.parametrize("rows", [16, 48])
def test_fused_all_gather_matmul(ranks: Ranks, rows: int) -> None:
    assert_gathered_products(ranks, programs.fused_all_gather_matmul, rows)


def done_by_the_second(
    ctx: Context, program: Callable[..., Callable[[], torch.Tensor]], **sizes: Any
) -> tuple[list[str], int]:
    """The collectives and the floating-point operations of the second step."""
    step = program(ctx, **sizes)
    step()
    with Traffic() as traffic, FlopCounterMode(display=False) as counter:
        step()
    return [call.name for call in traffic.calls], counter.get_total_flops()


@pytest.mark.parametrize(
    ("program", "collective"),
    [
        (programs.all_gather_then_matmul, "all_gather"),
        (programs.all_gather_beside_matmul, "all_gather"),
        (programs.matmul_then_reduce_scatter, "reduce_scatter"),
    ],
    ids=["all-gather", "all-gather-beside", "reduce-scatter"],
)
@pytest.mark.ranks(2)
def test_each_step_exchanges(ranks: Ranks, program: Callable[..., Callable[[], torch.Tensor]], collective: str) -> None:
    """Every step multiplies the same matrices: their product alone does not tell whether they were sent again.

    Nor does it tell whether a rank multiplied its own shard a second time, among the others'.
    """
    for sent, flops in ranks.run(done_by_the_second, program, m=8, k=64, n=32, dtype=DTYPE):
        assert sent == [collective]
        assert flops == 2 * 8 * 64 * 32 // ranks.world_size


@pytest.mark.parametrize("rows", [1, 7])
def test_matmul_then_reduce_scatter(ranks: Ranks, rows: int) -> None:
    assert_scattered_products(ranks, programs.matmul_then_reduce_scatter, rows)


@pytest.mark.ranks(2, 4, 8, nodes=1, device="cuda")
@pytest.mark.parametrize("rows", [16, 48])
def test_fused_matmul_reduce_scatter(ranks: Ranks, rows: int) -> None:
    assert_scattered_products(ranks, programs.fused_matmul_reduce_scatter, rows)
