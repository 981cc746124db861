"""Products and their collectives, in turn and at once, by hand and by the compiler; what a split block waits for."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context, Exchange, Metric, Perf, Ranks, Work
from suites.shared.comparison import assert_close
from suites.shared.references import of_all_ranks
from suites.shared.sharding import per_rank
from suites.shared.step import Tensors, excerpt
from suites.tensor_parallel.programs import block, micro_pipeline, rows
from suites.tensor_parallel.programs import collective_matmul as programs
from suites.tensor_parallel.reference import whole_layer
from suites.tensor_parallel.test_correctness import two_layers
from suites.tensor_parallel.test_micro_pipeline import DIMS

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
@pytest.mark.ranks(2, 4, 8, nodes=1, device="cuda", largest=True)
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


@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8, largest=True)
def test_all_gather_beside_matmul(perf: Perf) -> None:
    """A functional collective returns before its data have come: the rank's own rows are multiplied meanwhile."""
    m, k, n = perf.sized(M, smoke=64), perf.sized(K, smoke=32), perf.sized(N, smoke=64)
    pair = perf.configured(rtol=RTOL, atol=ATOL).compare(
        baseline=programs.all_gather_then_matmul,
        optimized=programs.all_gather_beside_matmul,
        verify=functools.partial(gathered_and_multiplied, k),
        m=m,
        k=k,
        n=n,
    )
    work = Work(perf.world_size, (Exchange("all_gather", 2 * m * k),), flop=2 * m * k * n / perf.world_size)
    # The baseline is that of the fused product, and is judged there.
    perf.check(speedup=pair.speedup, optimized_time=pair.optimized.time.for_work(work))


def multiplied_and_scattered(sizes: dict[str, int], ctx: Context, product: torch.Tensor, steps: int) -> None:
    """Whether rows of the result are the sum over all ranks' products, multiplied in float64."""
    a, b = programs.products_to_sum(ctx, dtype=product.dtype, **sizes)
    mine = torch.arange(0, product.shape[0], max(1, product.shape[0] // CHECKED), device=ctx.device)
    for rank in range(ctx.world_size):
        part = a[mine + rank * product.shape[0]].double() @ b.double()
        dist.all_reduce(part)
        if rank == ctx.rank:
            # A sum of R products that were rounded: R roundings more.
            assert_close(product[mine].double(), part, f"rank {ctx.rank}, rows", rtol=RTOL, atol=ATOL * ctx.world_size)


@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8, nodes=1, device="cuda", largest=True)
def test_matmul_then_reduce_scatter(perf: Perf) -> None:
    m, k, n = perf.sized(M, smoke=1024), perf.sized(N, smoke=1024), perf.sized(K, smoke=256)
    pair = perf.configured(rtol=RTOL, atol=ATOL * perf.world_size).compare(
        baseline=programs.matmul_then_reduce_scatter,
        optimized=programs.fused_matmul_reduce_scatter,
        verify=functools.partial(multiplied_and_scattered, {"m": m, "k": k, "n": n}),
        m=m,
        k=k,
        n=n,
    )
    work = Work(perf.world_size, (Exchange("reduce_scatter", 2 * m * n),), flop=2 * m * k * n / perf.world_size)
    perf.check(
        speedup=pair.speedup,
        baseline_time=pair.baseline.time.for_work(work),
        optimized_time=pair.optimized.time.for_work(work),
    )


@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8, nodes=1, device="cuda", largest=True)
def test_heights(perf: Perf) -> None:
    """From how many rows on is the fused product the faster one? All-gather and matmul of 1024 to 65536 rows."""
    k, n = perf.sized(K, smoke=256), perf.sized(N, smoke=1024)
    sizes = [rows.DTYPE.itemsize * k * 1024 * 2**power for power in range(perf.sized(7, smoke=2))]

    def verify(ctx: Context, product: torch.Tensor, steps: int, nbytes: int) -> None:
        a, b = programs.matmul_inputs(ctx, m=rows.rows_of(sizes[-1], k), k=k, n=n, dtype=rows.DTYPE)
        m = rows.rows_of(nbytes, k)
        mine = a[: m // ctx.world_size]
        some = torch.arange(0, m, max(1, m // CHECKED), device=ctx.device)
        expected = torch.cat(list(of_all_ranks(ctx, mine)))[some].double() @ b.double()
        assert_close(product[some].double(), expected, f"rank {ctx.rank}, product", rtol=RTOL, atol=ATOL)

    in_turn, fused = (perf.sweep(arm, sizes=sizes, verify=verify, k=k, n=n) for arm in (rows.in_turn, rows.fused))
    perf.check(in_turn=in_turn.peak, fused=fused.peak)
    gains = [theirs / ours for theirs, ours in zip(in_turn.seconds, fused.seconds, strict=True)]
    heights = [rows.rows_of(nbytes, k) for nbytes in sizes]
    perf.show(**{f"gain_at_{m}": Metric(gain, "x", "higher") for m, gain in zip(heights, gains, strict=True)})
    lasting = [m for place, m in enumerate(heights) if min(gains[place:]) > 1]
    if lasting:
        perf.show(faster_from=Metric(lasting[0], "rows", "lower"))


@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8, largest=True)
def test_block(perf: Perf) -> None:
    """How much of a split block's time are its sums over the ranks, forward and backward together."""
    shape = block.BlockShape(
        sequences=1,
        length=perf.sized(4096, smoke=8),
        width=perf.sized(8192, smoke=64),
        heads=perf.sized(64, smoke=8),
        hidden=perf.sized(28672, smoke=64),
        dtype=torch.float32 if perf.smoke else torch.bfloat16,
    )

    def verify(ctx: Context, output: list[torch.Tensor], steps: int) -> None:
        alone = block.stepping(ctx, shape, block.whole(ctx, shape))()
        # Each of the two sums of a direction is rounded once more on each rank, of numbers of a few units.
        bound = 8 * ctx.world_size * torch.finfo(shape.dtype).eps
        for got, expected, what in zip(output, alone, ("output", "input gradient"), strict=True):
            assert_close(got, expected, f"rank {ctx.rank}, {what}", rtol=RTOL, atol=bound)

    found = perf.overlap(
        together=block.split, compute=block.share, communication=block.sums, verify=verify, shape=shape
    )
    timing = found.together
    perf.check(time=timing.time)
    mfu = timing.rate(shape.flop / perf.world_size, "FLOP/s", limit=perf.peak(shape.dtype), limit_name="matrix units")
    perf.show(exposed=found.exposed, mfu=mfu, share=found.compute.time, sums=found.communication.time)


# In units of the usual size. Each of R = 8 ranks' summands, which are below 4 / sqrt(R), is rounded to bfloat16, by at
# most 2**-9 of itself: 4 * sqrt(8) * 2**-9 < 2**-5 in all. Between two arms the larger values have RTOL besides.
EXCERPT_ATOL = 2**-5


# Compiling and symmetric memory leave much in the process, see test_micro_pipeline.
@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8, nodes=1, largest=True, isolation="process")
def test_micro_pipeline(perf: Perf, ranks: Ranks) -> None:
    """What does torch's pass gain that makes one operation of a product and its collective, and what does it cost?"""
    shape = micro_pipeline.MlpShape(
        tokens=perf.sized(M // 2, smoke=64),
        width=perf.sized(K, smoke=32),
        hidden=perf.sized(N, smoke=64),
        dtype=torch.float32 if perf.smoke else torch.bfloat16,
    )

    def verify(ctx: Context, output: tuple[Tensors, micro_pipeline.Compilation], steps: int) -> None:
        results, made = output
        made.assert_made(f"rank {ctx.rank}")
        whole = whole_layer(two_layers, micro_pipeline.drawn(ctx, shape))
        for name, expected in excerpt(per_rank(whole, ctx.world_size, DIMS)[ctx.rank]).items():
            assert_close(results[name], expected, f"rank {ctx.rank}, {name}", rtol=RTOL, atol=EXCERPT_ATOL)

    # To compile takes seconds on each rank; test_micro_pipeline does it on CPUs, too.
    ways = (micro_pipeline.EAGER,) if perf.smoke else micro_pipeline.WAYS
    found = perf.configured(rtol=RTOL, atol=EXCERPT_ATOL).search(
        micro_pipeline.train,
        configurations={way: {"way": way} for way in ways},
        tokens=shape.tokens,
        flop=shape.flop,
        dtype=shape.dtype,
        verify=verify,
        shape=shape,
    )
    perf.check(**found.figures)
    for way in ways:
        first = max(ranks.run(micro_pipeline.compiling, way=way))
        perf.show(**{f"first_step_{way.replace('-', '_')}": Metric(first, "s", "lower")})
    seconds = {trial.name: trial.seconds for trial in found.trials}
    compiled, fused = (seconds.get(way) for way in (micro_pipeline.COMPILED, micro_pipeline.MICRO_PIPELINED))
    if compiled is not None and fused is not None:
        perf.show(gain=Metric(compiled / fused, "x", "higher"))
