"""What a healthy machine's load says, in words about the one that is not."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

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
