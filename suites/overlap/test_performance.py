"""What overlap gains, by which way and with which buckets, and how much of the communication it leaves exposed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_gpuperf import Context, Exchange, Metric, Perf, Ranks, Work
from suites.overlap.programs import backward as programs
from suites.overlap.programs import under_products
from suites.shared.comparison import assert_close
from suites.shared.places import assert_sum
from suites.shared.references import mean_of_all_ranks

pytestmark = [pytest.mark.perf, pytest.mark.ranks(2, 4, 8, largest=True)]

DTYPE = torch.bfloat16
AFTER = "after backward"
BUCKETS = (1, 5, 25, 100, 400)  # MiB; 25 is DistributedDataParallel's default
BUDGET = 0.5  # seconds; a GPU at its power limit scatters so much that 10 or 20 samples give no steady median


def workload(perf: Perf) -> programs.Mlp:
    """1 GiB of gradients, 128 MiB a layer.

    A layer's backward is 4 B W**2 = 0.55 TFLOP, 0.7 ms at the 790 TFLOP/s of an H200; its all_reduce over
    8 of them takes 0.7 ms: neither hides the other by its mere size.
    """
    return programs.Mlp(
        layers=perf.sized(8, smoke=3),
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
    both = dataclasses.replace(products(perf, mlp), exchanges=means(perf, mlp).exchanges)
    perf.check(
        together=found.together.time.for_work(both),
        compute=found.compute.time.for_work(products(perf, mlp)),
        communication=found.communication.time.for_work(means(perf, mlp)),
    )
    # Of its limit: the model's utilisation of the matrix units (MFU), with the gradients' mean.
    mfu = found.together.rate(mlp.flop, "FLOP/s", limit=perf.peak(DTYPE), limit_name="matrix units")
    perf.show(exposed=found.exposed, efficiency=found.efficiency, ideal=found.ideal, mfu=mfu)


def finer(perf: Perf) -> programs.Mlp:
    """0.25 GiB of gradients, 8 MiB a layer: buckets hold a part of a layer's, or many layers'."""
    return programs.Mlp(
        layers=perf.sized(32, smoke=3),
        width=perf.sized(2048, smoke=8),
        rows=perf.sized(8192, smoke=4),
        dtype=DTYPE,
        seed=1,
    )


def test_buckets(perf: Perf, ranks: Ranks) -> None:
    """After backward, DDP with buckets of several sizes, and between microbatches: the fastest is named."""
    mlp = finer(perf)
    ways: dict[str, dict[str, Any]] = {
        AFTER: {"way": AFTER},
        **{f"buckets of {mib} MiB": {"way": "during backward", "bucket_mib": mib} for mib in BUCKETS},
        "2 microbatches": {"way": "between microbatches", "microbatches": 2},
    }
    # A microbatch's gradient is rounded by itself, and so is the sum of the two.
    largest = max(ranks.run(programs.largest_gradient, mlp=mlp))
    atol = programs.reduction_error(perf.world_size + 4, DTYPE, 2 * largest)

    def verify(ctx: Context, sample: torch.Tensor, steps: int) -> None:
        own = programs.sample(programs.compute(ctx, mlp=mlp)())
        assert_close(sample.double(), mean_of_all_ranks(ctx, own), f"rank {ctx.rank}, gradients", atol=atol)

    found = perf.configured(rtol=0.0, atol=atol, budget=BUDGET).search(
        programs.sampled, configurations=ways, name="ways", verify=verify, mlp=mlp
    )
    default = next(trial for trial in found.trials if trial.name == f"buckets of {programs.BUCKET_MIB:.0f} MiB")
    perf.check(best=found.speed(found.best), default=found.speed(default))
    after = next(trial for trial in found.trials if trial.name == AFTER)
    if after.seconds is not None and default.seconds is not None:
        perf.show(gain_of_overlap=Metric(after.seconds / default.seconds, "x", "higher"))


# An H200 takes 4.5 ms for 24 products of 4096 x 4096, and 5.6 ms for 4 of 8192 x 8192, at its power limit.
LOADS = {"of 4096": (24, 4096), "of 8192": (4, 8192)}
SUMMED_BYTES = 2**27


@pytest.mark.ranks(2, 4, 8, nodes=1, largest=True)  # two of the ways need peers' memory
@pytest.mark.parametrize("products", LOADS)
def test_sums_under_products(perf: Perf, products: str) -> None:
    """How much of an all_reduce each way hides under products of matrices; the best one is named."""
    number, size = LOADS[products]
    load = under_products.Load(
        products=perf.sized(number, smoke=2),
        size=perf.sized(size, smoke=16),
        numel=perf.sized(SUMMED_BYTES // under_products.SUMMED.itemsize, smoke=840),
        dtype=torch.float32 if perf.smoke else DTYPE,
    )

    def verify(ctx: Context, output: list[torch.Tensor], steps: int) -> None:
        product, total = output
        assert_sum(total, ranks=ctx.world_size, steps=1, where=f"rank {ctx.rank}, sum")
        alone = under_products.products(ctx, load=load)()[0]
        assert_close(product, alone, f"rank {ctx.rank}, product")

    ways = [way for way in under_products.WAYS if not (perf.smoke and way in under_products.ON_GPUS)]
    found = {
        way: perf.configured(budget=0.15).overlap(
            together=under_products.together,
            compute=under_products.products,
            communication=under_products.sum_alone,
            verify=verify,
            load=load,
            way=way,
        )
        for way in ways
    }
    best = min(ways, key=lambda way: found[way].together.median)
    # Which way is the best may change: its name is among the figures that are shown.
    perf.check(best=found[best].together.time)
    perf.show(**{f"hidden_best_{best}": found[best].efficiency})
    for way, overlap in found.items():
        perf.show(
            **{
                f"hidden_{way}": overlap.efficiency,
                f"ideal_{way}": overlap.ideal,
                f"alone_{way}": overlap.communication.time,
            }
        )
