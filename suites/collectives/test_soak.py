"""For as long as is asked, collectives with changing sizes, dtypes and groups, each checked: ``--soak MINUTES``."""

from __future__ import annotations

import pytest

from pytest_gpuperf import Ranks
from suites.collectives.programs.soak import soak

LEAST = 0.3  # seconds
SLICE = 20.0  # seconds of one run, far below its timeout


@pytest.mark.ranks(2, 4, 8, largest=True)
def test_soak(ranks: Ranks, soak_seconds: float) -> None:
    largest = 2**26 if ranks.backend == "nccl" else 100_000
    left, seed = max(LEAST, soak_seconds), 1
    while left > 0:
        told = ranks.run(soak, seconds=min(left, SLICE), seed=seed, largest=largest)
        wrong = [text for _, of_rank in told for text in of_rank]
        assert not wrong, "\n".join(wrong)
        assert all(done for done, _ in told), f"collectives of each rank: {[done for done, _ in told]}"
        left, seed = left - SLICE, seed + 1
