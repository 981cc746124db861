"""What halving the bytes of gradients gains once the casts are paid for; the limit is 2."""

from __future__ import annotations

import functools

import pytest
import torch

from pytest_gpuperf import Context, Perf
from suites.compression.programs import averaging as programs
from suites.shared.comparison import assert_close
from suites.shared.exchange import mean_of_all_ranks

LARGEST = 1.0  # magnitude of programs.uniform's gradients


@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8, largest=True)
def test_bfloat16_gradients(perf: Perf) -> None:
    # 16 layers of 64 MiB: 1 GiB, each layer in a bucket of its own.
    gradients = functools.partial(programs.uniform, layers=perf.sized(16, smoke=2), width=perf.sized(4096, smoke=8))
    atol = LARGEST * sum(
        programs.averaging_error(perf.world_size, roundoff)
        for roundoff in (programs.BFLOAT16_ROUNDOFF, programs.FLOAT32_ROUNDOFF)
    )

    def verify(ctx: Context, averaged: list[torch.Tensor], steps: int) -> None:
        for layer, (mean, own) in enumerate(zip(averaged, gradients(ctx), strict=True)):
            expected = mean_of_all_ranks(ctx, own)
            assert_close(mean.double(), expected, f"rank {ctx.rank}, layer {layer}", atol=atol)

    pair = perf.configured(rtol=0.0, atol=atol).compare(
        baseline=programs.average_in_float32,
        optimized=programs.average_in_bfloat16,
        verify=verify,
        gradients=gradients,
    )
    perf.check(speedup=pair.speedup, float32=pair.baseline.time, bfloat16=pair.optimized.time)
