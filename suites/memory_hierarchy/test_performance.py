"""How fast each tier of memory is, all GPUs at once, against the rates of its bus: one table, and two curves."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_gpuperf import Context, GiB, KiB, Metric, MiB, Perf, Ranks
from suites.memory_hierarchy import programs
from suites.memory_hierarchy.programs import OWN
from suites.memory_hierarchy.test_correctness import TIERS

pytestmark = [pytest.mark.perf, pytest.mark.ranks(1, 2, 4, 8, nodes=1, largest=True), pytest.mark.depends("gpu")]

LARGE = GiB, 64 * MiB  # of the GPU's own memory, beyond any cache; of the host's
OVER_PCIE = ("to_gpu", "from_gpu", "to_gpu_pageable", "from_gpu_pageable")
JUDGED = ("to_gpu", "from_gpu")
"""How fast the host copies to pageable memory depends on where that and the cores lie: it is shown."""


def timed(perf: Perf, name: str, nbytes: int) -> Any:
    """The timing of one tier at one size."""
    program, verify, arguments = TIERS[name]

    def prepared(ctx: Any) -> Callable[[], Any]:
        step: Callable[[], Any] = program(ctx, sizes=[nbytes], **arguments)(nbytes)
        return step

    return perf.configured(budget=0.1).measure(
        prepared, verify=lambda ctx, output, steps: verify(ctx, output, steps, nbytes)
    )


@pytest.mark.depends("pair", "to_peer")
@pytest.mark.depends("host", "to_gpu", "from_gpu", "both_ways", "to_gpu_pageable", "from_gpu_pageable", "host")
def test_tiers(perf: Perf, ranks: Ranks) -> None:
    own, host = (perf.sized(nbytes, smoke=KiB) for nbytes in LARGE)
    rates: dict[str, Metric] = {}
    for name, crossings in OWN.items():
        rates[name] = timed(perf, name, own).rate(
            crossings * own, "B/s", limit=perf.memory.line_rate, limit_name="memory", plain=True
        )
    for name in OVER_PCIE:
        nbytes = host if name in JUDGED else max(host // 4, KiB)  # pageable memory is slow, and only shown
        rates[name] = timed(perf, name, nbytes).rate(
            nbytes, "B/s", limit=perf.host_link.line_rate, limit_name="PCIe", plain=True
        )
    # Two directions, each with a rate of its own; healthy machines reach 55 % of both together, and no model knows why.
    two_ways = None if perf.host_link.line_rate is None else 2 * perf.host_link.line_rate
    rates["both_ways"] = timed(perf, "both_ways", host).rate(2 * host, "B/s", limit=two_ways, limit_name="PCIe")
    if perf.world_size > 1:
        rates["to_peer"] = timed(perf, "to_peer", host).rate(
            host, "B/s", limit=perf.link.line_rate, limit_name=perf.link.name, plain=True
        )
    copies = [seconds for seconds, _ in ranks.run(programs.host_copies, nbytes=host, samples=10)]
    slowest = max(statistics.median(seconds) for seconds in copies)
    rates["host"] = Metric(2 * host / slowest, "B/s", "higher", samples=10, clock="host")
    perf.check(**{name: rates[name] for name in (*OWN, *JUDGED, "both_ways", "to_peer") if name in rates})
    perf.show(**{name: rates[name] for name in ("to_gpu_pageable", "from_gpu_pageable", "host")})
    # The table's last column: how many times slower a tier is than a read of the GPU's own memory.
    perf.show(
        **{f"read/{name}": Metric(rates["read"].value / rate.value, "x", "lower") for name, rate in rates.items()}
    )


def alone(ctx: Context, *, rank: int, name: str, nbytes: int) -> Callable[[], Any]:
    """Copies on one rank; the others do next to nothing, so that no GPU shares what the host has."""
    if ctx.rank == rank:
        program, _, arguments = TIERS[name]
        step: Callable[[], Any] = program(ctx, sizes=[nbytes], **arguments)(nbytes)
        return step
    idle = torch.zeros((), device=ctx.device)
    return lambda: idle.add_(1)


@pytest.mark.parametrize("name", JUDGED)
def test_pcie_of_each_gpu(perf: Perf, name: str) -> None:
    """The copies of one GPU after the other: the slowest one is judged, and each is told."""
    nbytes, (_, verify, _) = perf.sized(LARGE[1], smoke=KiB), TIERS[name]

    def check(rank: int) -> Callable[[Context, Any, int], None]:
        return lambda ctx, output, steps: verify(ctx, output, steps, nbytes) if ctx.rank == rank else None

    rates = [
        perf.configured(budget=0.1)
        .measure(alone, verify=check(rank), rank=rank, name=name, nbytes=nbytes)
        .rate(nbytes, "B/s", limit=perf.host_link.line_rate, limit_name="PCIe", plain=True)
        for rank in range(perf.world_size)
    ]
    slowest = min(rates, key=lambda rate: rate.value)
    perf.check(slowest_gpu=dataclasses.replace(slowest, by_rank=tuple(rate.value for rate in rates)))


def powers(first: int, last: int) -> list[int]:
    """Sizes from 2**first to 2**last bytes."""
    return [2**power for power in range(first, last + 1)]


@pytest.mark.parametrize(("name", "crossings"), OWN.items(), ids=OWN)
@pytest.mark.depends("host", "alpha")  # small reads take 2.9 us on some healthy machines, and 4.2 us on others
def test_cache_and_memory(perf: Perf, name: str, crossings: int) -> None:
    program, verify, _ = TIERS[name]
    sizes = powers(16, 30) if not perf.smoke else powers(10, 12)
    swept = perf.sweep(program, sizes=sizes, verify=verify)
    fastest = max(range(len(sizes)), key=swept.bandwidths.__getitem__)
    # Often the cache's rate, for which no data sheet has a limit.
    peak = swept.timings[fastest].rate(crossings * sizes[fastest], "B/s")
    perf.check(alpha=swept.alpha, peak=peak, evenness=swept.evenness)


@pytest.mark.parametrize("name", JUDGED)
@pytest.mark.depends("host")
def test_pinned_memory_over_pcie(perf: Perf, name: str) -> None:
    program, verify, _ = TIERS[name]
    sizes = powers(12, 28) if not perf.smoke else powers(10, 12)
    swept = perf.sweep(program, sizes=sizes, verify=verify)
    perf.check(alpha=swept.alpha, evenness=swept.evenness)
    perf.show(peak=swept.peak, half_size=Metric(swept.half_size, "B", "lower"))
