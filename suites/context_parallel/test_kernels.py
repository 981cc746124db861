"""Torch's own ring on CPUs, whose kernels are written out: each part of the keys goes to every rank."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.tensor.experimental import _attention

from pytest_gpuperf import Ranks
from suites.context_parallel.programs.attention import Layout
from suites.context_parallel.programs.kernels import Kernel, ring_on_cpus
from suites.context_parallel.reference import assert_attends, drawn
from suites.shared.step import once

pytestmark = [
    pytest.mark.ranks(3, device="cpu"),
    pytest.mark.skipif(not hasattr(_attention, "_PTRRLoadBalancer"), reason="this torch's ring is another one"),
]


@pytest.mark.parametrize(
    ("causal", "layout"), [(False, "contiguous"), (True, "contiguous"), (True, "head-tail")], ids=str
)
@pytest.mark.parametrize(
    ("kernel", "rotation", "as_module"),
    [("efficient", "allgather", False), ("flash", "alltoall", True)],
    ids=["function", "module"],
)
def test_the_ring(ranks: Ranks, kernel: Kernel, rotation: str, as_module: bool, causal: bool, layout: Layout) -> None:
    """Scores are doubled by the scale, as they would be by queries of twice the size."""
    tensors = drawn(batch=2, heads=3, groups=1, tokens=12, features=4, dtype=torch.float32, seed=1)
    given = {"rotation": rotation, "causal": causal, "layout": layout, "kernel": kernel, "as_module": as_module}
    got = ranks.run(once, ring_on_cpus, scale=1.0, **given, **tensors)
    for of_rank in got:
        of_rank["query gradient"] /= 2
    assert_attends(got, tensors | {"query": 2 * tensors["query"]}, causal=causal, layout=layout)
