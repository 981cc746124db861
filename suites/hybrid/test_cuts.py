"""Parameters that are cut along two axes of a mesh are whole where they are needed, and so are their gradients."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from pytest_gpuperf import Ranks
from suites.hybrid.programs.cuts import CUTS, cut_twice
from suites.shared.comparison import assert_same
from suites.shared.inputs import integers
from suites.shared.step import Tensors

STEPS = 2
SHAPE = (8, 4)


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("reshard", "compute"),
    [(True, torch.float32), (False, torch.bfloat16)],
    ids=["gathered anew", "kept in bfloat16"],
)
def test_cut_along_two_axes(ranks: Ranks, reshard: bool, compute: torch.dtype) -> None:
    """bfloat16 holds each rank's gradients, and not their means."""
    if compute == torch.bfloat16 and torch.__version__ < "2.13":  # compared as a version
        pytest.skip(f"torch {torch.__version__} says that gathered parts of DTensors have the dtype of shards")

    def drawn(seed: int) -> Tensors:
        return {
            name: integers(SHAPE, torch.float32, seed=16 * seed + place, low=-255, high=255)
            for place, name in enumerate(CUTS)
        }

    values, weights = drawn(0), [[drawn(1), drawn(2)], [drawn(3), drawn(4)]]
    policy = MixedPrecisionPolicy(compute, torch.float32)
    got = ranks.run(cut_twice, steps=STEPS, reshard=reshard, policy=policy, values=values, weights=weights)
    for step, of_step in enumerate(weights):
        expected = {f"{name} in forward": value.to(compute) for name, value in values.items()}
        gradients = {name: torch.stack([of_rank[name] for of_rank in of_step]).mean(0) for name in CUTS}
        values = {name: value - gradients[name] for name, value in values.items()}
        expected |= values | {f"{name} gradient": gradient for name, gradient in gradients.items()}
        assert_same([told[step] for told in got], [expected] * 4, ordered=False)
