"""What a healthy machine's load says, in words about the one that is not."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from pytest_gpuperf import Health
from suites.health.programs.soak import Soaked
from suites.health.programs.straining import Strain

ODD = 0.04
"""How far a GPU may be slower than most of its machine; under load, GPUs of one machine are within 3 %."""
MISSED = 0.05
"""The chance that a fault of the rate that is said to be seen is not."""


def complaints(strains: Sequence[Strain]) -> Iterator[str]:
    """What is wrong with the results, rank by rank."""
    most = statistics.mode(strain.digest for strain in strains)
    for rank, strain in enumerate(strains):
        if strain.wrong_products:
            yield f"rank {rank}: {strain.wrong_products} of {strain.products} products differ from the first one"
        if strain.wrong_sums:
            yield f"rank {rank}: {strain.wrong_sums} sums over all ranks are wrong"
        if strain.digest != most:
            yield f"rank {rank}: its product of the same matrices differs from the other ranks'"
        if not strain.products:
            yield f"rank {rank}: it has multiplied nothing"


def rates(strains: Sequence[Strain]) -> list[float]:
    """Products per second of each rank, by the median of its later half: by then clocks and heat have settled."""
    found = []
    for strain in strains:
        later = strain.seconds[len(strain.seconds) // 2 :]
        found.append(strain.products / len(strain.seconds) / statistics.median(later))
    return found


def corruptions(soaked: Sequence[Soaked]) -> Iterator[str]:
    """What a soak found, rank by rank."""
    for rank, one in enumerate(soaked):
        for kind, wrong in one.wrong.items():
            if wrong:
                yield f"rank {rank}: {wrong} of {one.compared[kind]} {kind} are wrong"
            if not one.compared[kind]:
                yield f"rank {rank}: it compared no {kind}"


def seen_rate(compared: int) -> float:
    """The smallest share of corrupted operations that so many comparisons see with 95 %: 1 - 0.05^(1/n)."""
    return -math.expm1(math.log(MISSED) / compared)


def odd_ranks(by_rank: Sequence[float]) -> dict[int, float]:
    """Ranks that are slower than most by more than ODD, and by how much; of two the faster one is usual."""
    usual = statistics.median_high(by_rank)
    return {rank: 1 - rate / usual for rank, rate in enumerate(by_rank) if rate < (1 - ODD) * usual}


def odd_gpus(by_rank: Sequence[float], after: Sequence[Health]) -> Iterator[str]:
    """Each odd rank's GPU in words, and how hot and how fast it is beside the others.

    Args:
        by_rank: products per second.
        after: of each rank's GPU, right after the load; empty on CPUs.
    """
    for rank, behind in odd_ranks(by_rank).items():
        line = f"rank {rank}: under load its GPU is {behind:.0%} slower than most ranks' (at most {ODD:.0%})"
        if after:
            others = [health for other, health in enumerate(after) if other != rank]
            line += f"; {after[rank].uuid} right after the load: {_state([after[rank]])}; the others: {_state(others)}"
        yield line


def _state(gpus: Sequence[Health]) -> str:
    """The medians of what NVML tells of these GPUs."""
    told = {
        "GHz SM clock": [gpu.sm_hertz / 1e9 for gpu in gpus if gpu.sm_hertz is not None],
        "degrees C": [gpu.kelvin - 273.15 for gpu in gpus if gpu.kelvin is not None],
        "W": [gpu.watts for gpu in gpus if gpu.watts is not None],
    }
    return ", ".join(f"{statistics.median(values):.3g} {unit}" for unit, values in told.items() if values) or "not told"
