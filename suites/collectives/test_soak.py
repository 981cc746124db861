"""For as long as is asked, collectives with changing sizes, dtypes and groups, each checked: SUITES_SOAK_SECONDS."""

from __future__ import annotations

import os

import pytest

from pytest_gpuperf import Ranks
from suites.collectives.programs.soak import soak

SECONDS = float(os.environ.get("SUITES_SOAK_SECONDS", "0.3"))
SLICE = 20.0  # seconds of one run, far below its timeout


@pytest.mark.ranks(2, 4, 8, largest=True)
def test_soak(ranks: Ranks) -> None:
    largest = 2**26 if ranks.backend == "nccl" else 100_000
    left, seed = SECONDS, 1
    while left > 0:
        told = ranks.run(soak, seconds=min(left, SLICE), seed=seed, largest=largest)
        wrong = [text for _, of_rank in told for text in of_rank]
        assert not wrong, "\n".join(wrong)
        assert all(done for done, _ in told), f"collectives of each rank: {[done for done, _ in told]}"
        left, seed = left - SLICE, seed + 1
