"""Megatron-Core's tensor parallelism against DTensor's: one MLP, forward and backward."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Context, Exchange, Perf, Work
from suites.megatron import programs
from suites.megatron.reference import MLP_DIMS, needs_megatron, whole_mlp
from suites.shared.comparison import assert_close
from suites.shared.references import by_autograd
from suites.shared.sharding import per_rank
from suites.shared.step import Tensors, excerpt

RTOL = 1.6e-2  # of bfloat16, as torch.testing's default
# In units of the usual size. Each of R = 8 ranks' summands, which are below 4 / sqrt(R), is rounded to bfloat16, by at
# most 2**-9 of itself: 4 * sqrt(8) * 2**-9 < 2**-5 in all. Between two arms the larger values have RTOL besides.
ATOL = 2.0**-5


# Megatron asks for one connection, so that the sum in backward begins before the product beside it.
@needs_megatron
@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8, largest=True, isolation="process", env={"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
def test_mlp(perf: Perf) -> None:
    """Both sum the output and the input's gradient. Megatron sums the second beside the weight's gradient."""
    sizes = programs.MlpSizes(
        length=perf.sized(8192, smoke=16),
        width=perf.sized(8192, smoke=32),
        hidden=perf.sized(28672, smoke=64),
        dtype=torch.float32 if perf.smoke else torch.bfloat16,
    )

    def verify(ctx: Context, output: Tensors, steps: int) -> None:
        parameters, x, grad = programs.drawn(ctx, sizes)
        whole = by_autograd(whole_mlp, {"input": x, **parameters}, grad)
        for name, expected in excerpt(per_rank(whole, ctx.world_size, MLP_DIMS)[ctx.rank]).items():
            assert_close(output[name], expected, f"rank {ctx.rank}, {name}", rtol=RTOL, atol=ATOL)

    pair = perf.configured(rtol=RTOL, atol=ATOL).compare(
        baseline=programs.by_dtensor, optimized=programs.by_megatron, verify=verify, sizes=sizes
    )
    work = Work(
        perf.world_size,
        (Exchange("all_reduce", sizes.summed_bytes, 2),),
        flop=sizes.flop / perf.world_size,
    )
    perf.check(
        speedup=pair.speedup,
        baseline_time=pair.baseline.time.for_work(work),
        optimized_time=pair.optimized.time.for_work(work),
    )
    for name, timing in {"mfu": pair.optimized, "baseline_mfu": pair.baseline}.items():
        mfu = timing.rate(
            sizes.flop / perf.world_size, "FLOP/s", limit=perf.peak(sizes.dtype), limit_name="matrix units"
        )
        perf.show(**{name: mfu})
