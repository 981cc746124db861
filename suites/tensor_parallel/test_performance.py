"""All-gather and matmul, one after the other against fused."""

from __future__ import annotations

import pytest

from pytest_gpuperf import Perf
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


@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8, device="cuda", largest=True)
def test_all_gather_then_matmul(perf: Perf) -> None:
    pair = perf.configured(rtol=RTOL, atol=ATOL).compare(
        baseline=programs.all_gather_then_matmul,
        optimized=programs.fused_all_gather_matmul,
        m=perf.sized(M, smoke=1024),
        k=perf.sized(K, smoke=256),
        n=perf.sized(N, smoke=1024),
    )
    perf.check(speedup=pair.speedup, baseline_time=pair.baseline.time, optimized_time=pair.optimized.time)
