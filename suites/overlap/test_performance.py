"""What DistributedDataParallel gains over all_reduces after backward, and how much of them it leaves exposed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from pytest_gpuperf import Context, Exchange, Perf, Ranks, Work
from suites.overlap import programs
from suites.shared.comparison import assert_close
from suites.shared.exchange import mean_of_all_ranks

pytestmark = [pytest.mark.perf, pytest.mark.ranks(2, 4, 8, largest=True)]

DTYPE = torch.bfloat16
BUDGET = 1.0  # seconds; a GPU at its power limit scatters so much that 10 or 20 samples give no steady median


def workload(perf: Perf) -> programs.Mlp:
    """2 GiB of gradients, 128 MiB a layer.

    A layer's backward is 4 B W**2 = 0.55 TFLOP, 0.7 ms at the 790 TFLOP/s of an H200; its all_reduce over
    8 of them takes 0.7 ms: neither hides the other by its mere size.
    """
    return programs.Mlp(
        layers=perf.sized(16, smoke=3),
        width=perf.sized(8192, smoke=8),
        rows=perf.sized(2048, smoke=4),
        dtype=DTYPE,
        seed=1,
    )


def means(perf: Perf, mlp: programs.Mlp) -> Work:
    """What averaging the gradients of all layers must do."""
    exchange = Exchange("all_reduce", mlp.width**2 * DTYPE.itemsize, mlp.layers)
    return Work(perf.world_size, (exchange,))


def products(perf: Perf, mlp: programs.Mlp) -> Work:
    """What forward and backward must do."""
    return Work(perf.world_size, flop=mlp.flop, dtype="bfloat16")


def averaged(mlp: programs.Mlp, atol: float) -> Callable[[Context, list[torch.Tensor], int], None]:
    """Whether a step has left the mean of the gradients that each rank computes by itself."""

    def verify(ctx: Context, gradients: list[torch.Tensor], steps: int) -> None:
        for layer, (mean, own) in enumerate(zip(gradients, programs.compute(ctx, mlp=mlp)(), strict=True)):
            expected = mean_of_all_ranks(ctx, own)
            assert_close(mean.double(), expected, f"rank {ctx.rank}, layer {layer}", atol=atol)

    return verify


def rounding(perf: Perf, ranks: Ranks, mlp: programs.Mlp) -> float:
    """How far averages of the same gradients may be apart; only the order in which ranks are added may differ."""
    return programs.reduction_error(perf.world_size, DTYPE, max(ranks.run(programs.largest_gradient, mlp=mlp)))


def test_gradients_averaged_during_backward(perf: Perf, ranks: Ranks) -> None:
    mlp = workload(perf)
    atol = rounding(perf, ranks, mlp)
    pair = perf.configured(rtol=0.0, atol=atol, budget=BUDGET).compare(
        baseline=programs.all_reduce_after_backward,
        optimized=programs.all_reduce_during_backward,
        verify=averaged(mlp, atol),
        mlp=mlp,
    )
    both = dataclasses.replace(products(perf, mlp), exchanges=means(perf, mlp).exchanges)
    perf.check(speedup=pair.speedup, time=pair.optimized.time.for_work(both))


def test_exposed_communication(perf: Perf, ranks: Ranks) -> None:
    """The shares are shown, not judged: a difference of times scatters by 10 % where each of them does by 1 %."""
    mlp = workload(perf)
    found = perf.configured(budget=BUDGET).overlap(
        together=programs.all_reduce_during_backward,
        compute=programs.compute,
        communication=programs.communication,
        verify=averaged(mlp, rounding(perf, ranks, mlp)),
        mlp=mlp,
    )
    perf.check(
        compute=found.compute.time.for_work(products(perf, mlp)),
        communication=found.communication.time.for_work(means(perf, mlp)),
    )
    # Of its limit: the model's utilisation of the matrix units (MFU), with the gradients' mean.
    mfu = found.together.rate(mlp.flop, "FLOP/s", limit=perf.peak(DTYPE), limit_name="matrix units")
    perf.show(exposed=found.exposed, efficiency=found.efficiency, ideal=found.ideal, mfu=mfu)
