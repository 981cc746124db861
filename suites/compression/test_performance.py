"""What fewer bytes of gradients gain once casts and scales are paid for: the limit is 2 with 16 bits, 4 with 8."""

from __future__ import annotations

import functools

import pytest
import torch

from pytest_gpuperf import Comparison, Context, Exchange, Metric, Perf, Ranks, Work
from suites.compression.programs import averaging as programs
from suites.compression.programs import quantized
from suites.shared.comparison import assert_close
from suites.shared.references import mean_of_all_ranks
from suites.shared.step import Step
from suites.shared.ways import NET, connected, over

BUDGET = 0.15  # seconds of an arm: within a launch most of these steps scatter little
LARGEST = 1.0  # magnitude of programs.uniform's gradients


@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8, largest=True)
def test_bfloat16_gradients(perf: Perf) -> None:
    # 16 layers of 64 MiB: 1 GiB, each layer in a bucket of its own.
    layers, width = perf.sized(16, smoke=2), perf.sized(4096, smoke=8)
    gradients = functools.partial(programs.uniform, layers=layers, width=width)
    atol = LARGEST * sum(
        programs.averaging_error(perf.world_size, roundoff)
        for roundoff in (programs.BFLOAT16_ROUNDOFF, programs.FLOAT32_ROUNDOFF)
    )

    def verify(ctx: Context, averaged: list[torch.Tensor], steps: int) -> None:
        for layer, (mean, own) in enumerate(zip(averaged, gradients(ctx), strict=True)):
            expected = mean_of_all_ranks(ctx, own)
            assert_close(mean.double(), expected, f"rank {ctx.rank}, layer {layer}", atol=atol)

    pair = perf.configured(rtol=0.0, atol=atol, budget=BUDGET).compare(
        baseline=programs.average_in_float32,
        optimized=programs.average_in_bfloat16,
        verify=verify,
        gradients=gradients,
    )
    elements = layers * width**2
    # Each element of a gradient is divided: 8 bytes. In bfloat16 it is cast (6), divided (4) and cast back (6).
    plain = Work(perf.world_size, (Exchange("all_reduce", 4 * width**2, layers),), memory_bytes=8 * elements)
    short = Work(perf.world_size, (Exchange("all_reduce", 2 * width**2, layers),), memory_bytes=16 * elements)
    perf.check(
        speedup=pair.speedup,
        float32=pair.baseline.time.for_work(plain),
        bfloat16=pair.optimized.time.for_work(short),
    )


def off(name: str, world_size: int) -> float:
    """How far the mean of gradients between -1 and 1 may be off.

    With 8 bits by two roundings, of a rank's gradient and of the mean, whose block has at most the largest magnitude.
    """
    if name == "float16":
        return programs.averaging_error(world_size, programs.FLOAT16_ROUNDOFF)
    return {"int8": 2 / quantized.INT8.largest, "float8": 3 * quantized.FLOAT8.relative}[name]


def race(perf: Perf, name: str, layers: int, width: int) -> Comparison:
    """A hook against sums in float32; both average gradients of so many layers."""
    hook, state = programs.HOOKS[name]
    gradients = functools.partial(programs.uniform, layers=layers, width=width)
    atol = LARGEST * off(name, perf.world_size)

    def verify(ctx: Context, averaged: list[torch.Tensor], steps: int) -> None:
        for layer, (mean, own) in enumerate(zip(averaged, gradients(ctx), strict=True)):
            expected = mean_of_all_ranks(ctx, own)
            assert_close(mean.double(), expected, f"rank {ctx.rank}, layer {layer}", atol=atol)

    def compressed(ctx: Context, *, gradients: programs.Gradients) -> Step[list[torch.Tensor]]:
        return programs.average(ctx, gradients=gradients, hook=hook, state=state)

    pair = perf.configured(rtol=0.0, atol=2 * atol, budget=BUDGET).compare(
        baseline=programs.average_in_float32, optimized=compressed, verify=verify, gradients=gradients
    )
    # What the speed costs, as a bound: how far a mean of numbers up to 1 may be off.
    perf.show(float32=pair.baseline.time, error_bound=Metric(atol, "of 1", "lower"))
    return pair


@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8, largest=True)
@pytest.mark.parametrize("name", ["float16", "int8", "float8"])
def test_compressed_gradients(perf: Perf, name: str) -> None:
    pair = race(perf, name, perf.sized(16, smoke=2), perf.sized(4096, smoke=16))
    perf.check(speedup=pair.speedup, time=pair.optimized.time)


@pytest.mark.perf
@over(NET)
@pytest.mark.parametrize("name", ["float16", "int8", "float8"])
@pytest.mark.depends("host")
def test_compressed_gradients_on_a_slow_tier(perf: Perf, ranks: Ranks, name: str) -> None:
    """64 MiB of gradients over sockets, as between machines without a faster network: here fewer bytes should win."""
    NET.require(ranks.run(connected))
    pair = race(perf, name, perf.sized(4, smoke=2), perf.sized(2048, smoke=16))
    perf.check(speedup=pair.speedup, time=pair.optimized.time)


@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8, largest=True)
def test_one_buffer(perf: Perf) -> None:
    """Gradients of 128 layers of 256 KiB: a bucket for each of them, and DistributedDataParallel's own of 25 MiB."""
    gradients = functools.partial(programs.uniform, layers=perf.sized(128, smoke=4), width=perf.sized(256, smoke=8))

    def verify(ctx: Context, averaged: list[torch.Tensor], steps: int) -> None:
        for layer, (mean, own) in enumerate(zip(averaged, gradients(ctx), strict=True)):
            expected = mean_of_all_ranks(ctx, own)
            atol = LARGEST * programs.averaging_error(ctx.world_size, programs.FLOAT32_ROUNDOFF)
            assert_close(mean.double(), expected, f"rank {ctx.rank}, layer {layer}", atol=atol)

    def small_buckets(ctx: Context, *, gradients: programs.Gradients) -> Step[list[torch.Tensor]]:
        return programs.average(ctx, gradients=gradients, hook=None, bucket_cap_mb=2.0**-20)

    pair = perf.configured(budget=BUDGET).compare(
        baseline=small_buckets, optimized=programs.average_in_float32, verify=verify, gradients=gradients
    )
    perf.check(speedup=pair.speedup, time=pair.optimized.time)
    perf.show(small_buckets=pair.baseline.time)
