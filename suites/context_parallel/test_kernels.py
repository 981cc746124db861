"""Torch's own ring on CPUs, whose kernels are written out: each part of the keys goes to every rank."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.tensor.experimental import _attention

from pytest_gpuperf import Ranks
from suites.context_parallel.bounds import bounds, in_kernels
from suites.context_parallel.programs.attention import Layout
from suites.context_parallel.programs.kernels import Kernel, ring_of_groups, ring_on_cpus
from suites.context_parallel.reference import assert_attends, drawn, whole
from suites.shared.comparison import assert_within
from suites.shared.step import once

pytestmark = pytest.mark.skipif(not hasattr(_attention, "_PTRRLoadBalancer"), reason="this torch's ring is another one")


@pytest.mark.ranks(3, device="cpu")
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


@pytest.mark.ranks(4, device="cpu")
@pytest.mark.parametrize(
    ("causal", "layout", "kernel", "rotation", "dtype"),
    [
        (True, "head-tail", "flash", "allgather", torch.bfloat16),
        (True, "head-tail", "efficient", "alltoall", torch.float32),
        (False, "contiguous", "flash", "alltoall", torch.float32),
        (True, "contiguous", "efficient", "allgather", torch.bfloat16),
    ],
    ids=str,
)
def test_rings_of_some_ranks_each(
    ranks: Ranks, causal: bool, layout: Layout, kernel: Kernel, rotation: str, dtype: torch.dtype
) -> None:
    """Two rings have two sequences each; all that torch cuts it joins again, and nothing of a step is in the next.

    Values have fewer features than keys where the kernel takes them.
    """
    replicas, tokens = 2, 12
    tensors = drawn(batch=2 * replicas, heads=3, groups=1, tokens=tokens, features=4, dtype=dtype, seed=1)
    if kernel == "efficient":
        tensors |= {name: tensors[name][..., :2].contiguous() for name in ("value", "grad")}
    given = {"rotation": rotation, "causal": causal, "layout": layout, "kernel": kernel, "replicas": replicas}
    got = ranks.run(ring_of_groups, **given, **tensors)
    degree = ranks.world_size // replicas
    for rank, steps in enumerate(got):
        of_group = {name: tensor.chunk(replicas)[rank // degree] for name, tensor in tensors.items()}
        for step, results in enumerate(steps, 1):
            own = of_group | {"query": of_group["query"] / step}
            expected, bound = whole(own, causal), bounds(own, [torch.arange(tokens)], in_kernels(degree), causal)
            for name, tensor in results.items():
                assert tensor.dtype == dtype
                assert_within(tensor.double(), expected[name], bound[name], f"rank {rank}, step {step}, {name}")
