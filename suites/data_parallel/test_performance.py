"""Which way of data parallelism is the fastest, from batches in the host's memory to the mean of the gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from pytest_gpuperf import Context, Metric, Perf
from suites.data_parallel.programs import racing
from suites.data_parallel.reference import mean_gradients
from suites.shared.comparison import assert_close

# 6.3 TFLOP a rank: some 11 ms at 600 TFLOP/s. Its gradients are 268 MB, its batch 67 MB.
LARGE = racing.Sizes(layers=8, width=4096, rows=8192, dtype=torch.bfloat16)
SMOKE = dataclasses.replace(LARGE, layers=3, width=16, rows=8)
SEED = 1
RTOL = 2.0**-7  # two roundings of bfloat16
# In units of the usual size. A gradient passes the products of at most 2 * 8 layers and is summed over 8 ranks: at most
# 32 roundings of 2**-9 on each side. As random errors they add up to sqrt(64) 2**-9; four times that.
ATOL = 2.0**-4


def averaged(sizes: racing.Sizes) -> Callable[[Context, racing.Output, int], None]:
    """Whether every rank that holds gradients has those of all ranks' rows."""

    def verify(ctx: Context, output: racing.Output, steps: int) -> None:
        expected = mean_gradients(ctx, sizes, SEED, steps)
        _, held = output
        for name, tensor in (held.gradients or {}).items():
            assert_close(tensor, expected[name], f"rank {ctx.rank}, {name}", rtol=RTOL, atol=ATOL)

    return verify


@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8, nodes=1, largest=True)
def test_ways(perf: Perf) -> None:
    """Rows per second of each way; beside them what the gradients take on the links, and the batch to the GPU."""
    sizes = SMOKE if perf.smoke else LARGE
    found = perf.configured(rtol=RTOL, atol=ATOL).search(
        racing.train,
        configurations={way: {"way": way} for way in racing.WAYS},
        tokens=perf.world_size * sizes.rows,
        flop=perf.world_size * sizes.flop,
        dtype=sizes.dtype,
        verify=averaged(sizes),
        sizes=sizes,
        seed=SEED,
    )
    perf.check(**found.figures)
    ranks = perf.world_size
    if (rate := perf.link.line_rate) is not None:
        # A ring sends 2 (R - 1) / R of the gradients; DataParallel sends all parameters to the other R - 1 GPUs and
        # gets as many gradients from them, all over the links of one GPU.
        ring = 2 * (ranks - 1) / ranks * sizes.gradients / rate
        perf.show(
            all_reduce_at_line_rate=Metric(ring, "s", "lower"),
            data_parallel_at_line_rate=Metric(2 * (ranks - 1) * sizes.gradients / rate, "s", "lower"),
        )
    if (rate := perf.host_link.line_rate) is not None:
        perf.show(batch_at_host_rate=Metric(sizes.batch / rate, "s", "lower"))
    if (peak := perf.peak(sizes.dtype)) is not None:
        perf.show(products_at_peak=Metric(sizes.flop / peak, "s", "lower"))
