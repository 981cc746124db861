"""What hypothesis draws in more than one suite."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from pytest_gpuperf import Ranks

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int32, torch.int64)

seeds = st.integers(0, 2**16)
dtypes = st.sampled_from(FLOATS + INTEGERS)
float_dtypes = st.sampled_from(FLOATS)
shapes = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)


def worlds(ranks: Ranks) -> st.SearchStrategy[Ranks]:
    """Worlds of more than half the test's ranks: with markers of 2, 4 and 8, each size from 2 to 8 once."""
    return st.integers(max(ranks.world_size // 2 + 1, min(2, ranks.world_size)), ranks.world_size).map(ranks.resized)
