"""What ranks hold, beside what they should hold."""

from __future__ import annotations

import torch

from suites.collectives.programs import rank_input
from suites.symmetric_memory.programs import Shape


def inputs(degree: int, shape: Shape, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    return [rank_input(rank, shape=shape, dtype=dtype, seed=seed) for rank in range(degree)]


def assert_each(got: list[torch.Tensor], expected: list[torch.Tensor], what: str) -> None:
    """Every rank's tensor is the one expected of it, to the last bit."""
    for rank, (have, want) in enumerate(zip(got, expected, strict=True)):
        assert torch.equal(have, want), (
            f"rank {rank} has a wrong {what}: {have.flatten()[:8]}, not {want.flatten()[:8]}"
        )
