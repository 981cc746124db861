"""Which way is faster at which size, and by how much: symmetric memory against NCCL doing the same work."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch

from pytest_gpuperf import Context, KiB, Metric, MiB, Perf, Sweep
from suites.shared.step import Step, StepOf
from suites.symmetric_memory.programs import chase, exchanges, pages, shards_in_turn, sweeping
from suites.symmetric_memory.programs.one_sided import ENVIRON
from suites.symmetric_memory.reference import crossover
from suites.symmetric_memory.test_exchanges import GRADIENTS, HANDOFFS, Verify
from suites.symmetric_memory.test_sweeping import ON_GPUS, verify

pytestmark = [pytest.mark.perf, pytest.mark.ranks(2, 4, 8, nodes=1, largest=True)]

SUMS = ("sum_by_nccl", "sum_by_one_shot", "sum_by_two_shot", "sum_by_gets")
RINGS = ("ring_by_nccl", "ring_by_puts", "ring_by_gets", "ring_by_stores", "ring_by_loads", "ring_by_signals")
PAGES, SENT, PAGE_BYTES = 4096, 1024, 64 * KiB
"""Pages of 16 tokens of 8 heads of 128 features, keys and values in bfloat16."""


def swept(perf: Perf, name: str, sizes: Sequence[int]) -> Sweep:
    """One way's curve; on GPUs in a CUDA graph, since the host takes longer to launch small ones than they take."""
    op = "all_reduce" if name.startswith("sum") else "send_recv"
    named = functools.partial(verified, name)
    launched = perf.configured(cuda_graph=not perf.smoke)
    return launched.sweep(getattr(sweeping, name), sizes=sizes, op=op, verify=named)


def verified(name: str, ctx: Context, output: torch.Tensor, steps: int, nbytes: int) -> None:
    """``verify`` with the name first."""
    ctx.barrier()
    verify(ctx, name, output, steps, nbytes)
    ctx.barrier()


def check(perf: Perf, name: str, curve: Sweep) -> None:
    """Has a way's latency and peak judged.

    A model knows NCCL's peak alone: other ways move more bytes, or wait in barriers. It knows no latency in graphs.
    """
    peak = curve.peak if name.endswith("nccl") else dataclasses.replace(curve.peak, work=None)
    perf.check(**{f"{name}.alpha": dataclasses.replace(curve.alpha, work=None), f"{name}.peak": peak})


def judge(perf: Perf, names: Sequence[str], sizes: Sequence[int]) -> None:
    """Judges each way's latency and peak, and shows how it stands beside NCCL's at each size."""
    curves = {name: swept(perf, name, sizes) for name in names if not (perf.smoke and name in ON_GPUS)}
    first = names[0]
    for name, curve in curves.items():
        check(perf, name, curve)
        if name == first:
            continue
        gains = [theirs / ours for theirs, ours in zip(curves[first].seconds, curve.seconds, strict=True)]
        shown = {f"{name}.at_{nbytes}": Metric(gain, "x", "higher") for nbytes, gain in zip(sizes, gains, strict=True)}
        if (up_to := crossover(curves[first], curve)) is not None:
            shown[f"{name}.faster_up_to"] = Metric(up_to, "B", "higher")
        perf.show(**shown)


def test_sums(perf: Perf) -> None:
    judge(perf, SUMS, [4**power * KiB for power in range(perf.sized(8, smoke=2))])


@pytest.mark.depends("pair", "ring_by_loads.alpha", "ring_by_loads.peak", "ring_by_stores.alpha", "ring_by_stores.peak")
@pytest.mark.depends("pair", "ring_by_gets.peak", "ring_by_puts.peak", "ring_by_signals.peak")
def test_messages(perf: Perf) -> None:
    judge(perf, RINGS, [4**power * KiB for power in range(perf.sized(9, smoke=2))])


@pytest.mark.depends("gpu", "own")
@pytest.mark.depends("pair", "peer")
@pytest.mark.depends("host", "host")
def test_latency_of_loads(perf: Perf) -> None:
    """Seconds of one load from the GPU's own memory, the next GPU's, and the host's, beyond any cache."""
    places, steps = perf.sized(2**20, smoke=64), perf.sized(4096, smoke=10)

    def ended(ctx: Context, end: torch.Tensor, taken: int) -> None:
        assert end.tolist() == [chase.end_of(places, steps)], f"rank {ctx.rank}: the walk ended at {end.tolist()}"
        end.zero_()

    brief = perf.configured(budget=0.1)
    loads = {}
    for where in chase.WHERE:
        timing = brief.measure(chase.walk, verify=ended, where=where, places=places, steps=steps)
        q1, q3 = (seconds / steps for seconds in timing.quartiles)
        loads[where] = Metric(
            timing.median / steps, "s", "lower", q1, q3, samples=len(timing.samples), clock=timing.time.clock
        )
    perf.check(**loads)
    perf.show(peer_over_own=Metric(loads["peer"].value / loads["own"].value, "x", "lower"))


@pytest.mark.parametrize("way", [pages.by_puts, pages.by_gets], ids=["puts", "gets"])
@pytest.mark.depends("pair", "bandwidth")
def test_pages(perf: Perf, way: Callable[..., Step[torch.Tensor]]) -> None:
    number, sent = perf.sized(PAGES, smoke=16), perf.sized(SENT, smoke=4)

    def arrived(ctx: Context, output: torch.Tensor, steps: int) -> None:
        ctx.barrier()
        pages.verify(ctx, output, steps, sent=sent)
        ctx.barrier()

    pair = perf.compare(
        baseline=pages.by_nccl, optimized=way, verify=arrived, pages=number, sent=sent, page_bytes=PAGE_BYTES
    )
    link = pair.optimized.link
    rate = pair.optimized.rate(sent * PAGE_BYTES, "B/s", limit=link.line_rate, limit_name=link.name)
    perf.check(speedup=pair.speedup, bandwidth=rate)
    perf.show(nccl=pair.baseline.rate(sent * PAGE_BYTES, "B/s"))


def test_optimizer_shards(perf: Perf) -> None:
    """A step of SGD on 256 MiB of weights."""
    numel = perf.sized(64 * MiB, smoke=64)
    moved = 2 * numel * shards_in_turn.DTYPE.itemsize * (perf.world_size - 1) / perf.world_size

    def updated(ctx: Context, weights: torch.Tensor, steps: int) -> None:
        ctx.barrier()
        shards_in_turn.verify(ctx, weights, steps)
        ctx.barrier()

    pair = perf.compare(
        baseline=shards_in_turn.by_nccl, optimized=shards_in_turn.by_memory, verify=updated, numel=numel
    )
    link = pair.optimized.link
    rate = pair.optimized.rate(moved, "B/s", limit=link.line_rate, limit_name=link.name)
    perf.check(speedup=pair.speedup, bandwidth=rate)
    perf.show(nccl=pair.baseline.rate(moved, "B/s"))


def race(perf: Perf, ways: Mapping[str, Callable[..., StepOf]], op: str, verify: Verify) -> None:
    """Judges the latency and the peak of NCCL's way and of NVSHMEM's, and shows both times at each size."""
    sizes = [4**power * KiB for power in range(perf.sized(3, smoke=0), perf.sized(9, smoke=2))]
    curves = {name: perf.sweep(way, sizes=sizes, op=op, verify=verify) for name, way in ways.items()}
    for name, curve in curves.items():
        check(perf, name, curve)
        perf.show(**{f"{name}.time_at_{size}": timing.time for size, timing in zip(sizes, curve.timings, strict=True)})
    gains = [nccl / nvshmem for nccl, nvshmem in zip(curves["nccl"].seconds, curves["nvshmem"].seconds, strict=True)]
    perf.show(**{f"speedup_at_{size}": Metric(gain, "x", "higher") for size, gain in zip(sizes, gains, strict=True)})


@pytest.mark.ranks(2, 4, 8, nodes=1, largest=True, env=ENVIRON)
def test_handoff_by_nvshmem(perf: Perf) -> None:
    """Activations go from each stage of a pipeline to the next, 64 KiB to 64 MiB."""
    race(perf, HANDOFFS, "send_recv", exchanges.verify_handoff)


@pytest.mark.ranks(2, 4, 8, nodes=1, largest=True, env=ENVIRON)
def test_gradients_by_nvshmem(perf: Perf) -> None:
    """Each rank gets the sum of its part of all gradients, 64 KiB to 64 MiB."""
    race(perf, GRADIENTS, "reduce_scatter", exchanges.verify_gradients)
