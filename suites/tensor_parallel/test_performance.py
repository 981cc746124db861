"""All-gather and matmul, one after the other against fused."""

from __future__ import annotations

import functools

import pytest
import torch

from pytest_gpuperf import Context, Exchange, Perf, Work
from suites.shared.comparison import assert_close
from suites.shared.exchange import of_all_ranks
from suites.tensor_parallel.programs import collective_matmul as programs

# A feed-forward layer's shape. Every rank multiplies all M rows by its own N/R columns: 3584 on 8 ranks, where
# 2 * 16384 * 8192 * 3584 FLOP at the 790 TFLOP/s of an H200 take the 1.22 ms that the matmul alone was seen to
# take there, beside 1.95 ms for the baseline and 1.39 ms fused.
M, K, N = 16384, 8192, 28672

# Both arms round to bfloat16, each by at most 2**-8 of the value: 2**-7, and a little for the two values not
# being the same one. torch.testing's default for bfloat16.
RTOL = 1.6e-2
# Near zero, the fp32 accumulation is what differs: the arms' GEMMs have other heights, so other kernels. Each
# of K = 2**13 additions loses at most an ulp of a running sum below 8, 2**-21: 2**-8 in each arm.
ATOL = 2**-7


CHECKED = 64  # rows of the product, spread over all ranks' shards of A; the arms are compared in all of them


def gathered_and_multiplied(k: int, ctx: Context, product: torch.Tensor, steps: int) -> None:
    """Whether rows of the product are those of all ranks' A times this rank's B, multiplied in float64."""
    m, n = product.shape[0], product.shape[1] * ctx.world_size
    a, b = programs.matmul_inputs(ctx, m=m, k=k, n=n, dtype=product.dtype)
    rows = torch.arange(0, m, max(1, m // CHECKED), device=ctx.device)
    expected = torch.cat(list(of_all_ranks(ctx, a)))[rows].double() @ b.double()
    assert_close(product[rows].double(), expected, f"rank {ctx.rank}, product", rtol=RTOL, atol=ATOL)


@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8, device="cuda", largest=True)
def test_all_gather_then_matmul(perf: Perf) -> None:
    m, k, n = perf.sized(M, smoke=1024), perf.sized(K, smoke=256), perf.sized(N, smoke=1024)
    pair = perf.configured(rtol=RTOL, atol=ATOL).compare(
        baseline=programs.all_gather_then_matmul,
        optimized=programs.fused_all_gather_matmul,
        verify=functools.partial(gathered_and_multiplied, k),
        m=m,
        k=k,
        n=n,
    )
    # bfloat16: 2 bytes an element of A, which is gathered; each rank multiplies it by its columns of B.
    work = Work(perf.world_size, (Exchange("all_gather", 2 * m * k),), flop=2 * m * k * n / perf.world_size)
    perf.check(
        speedup=pair.speedup,
        baseline_time=pair.baseline.time.for_work(work),
        optimized_time=pair.optimized.time.for_work(work),
    )
