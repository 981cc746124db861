"""What a healthy machine's load says, in words about the one that is not."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from pytest_gpuperf import Health
from suites.health.programs import Strain

ODD = 0.1
"""How far a GPU may be slower than the median of all; GPUs of one machine are within 3 % of one another under load."""


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


def odd_ranks(by_rank: Sequence[float]) -> dict[int, float]:
    """Ranks that are more than a tenth slower than the median, and by how much."""
    usual = statistics.median(by_rank)
    return {rank: 1 - rate / usual for rank, rate in enumerate(by_rank) if rate < (1 - ODD) * usual}


def odd_gpus(by_rank: Sequence[float], after: Sequence[Health]) -> Iterator[str]:
    """Each odd rank's GPU in words, and how hot and how fast it is beside the others.

    Args:
        by_rank: products per second.
        after: of each rank's GPU, right after the load; empty on CPUs.
    """
    for rank, behind in odd_ranks(by_rank).items():
        line = (
            f"rank {rank}: under load its GPU is {behind:.0%} slower than the median of all ranks' (at most {ODD:.0%})"
        )
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
