"""Parameters that are cut along two axes of a mesh are whole where they are needed, and so are their gradients."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.hybrid.programs.cuts import CUTS, cut_twice
from suites.shared.comparison import assert_same
from suites.shared.inputs import integers
from suites.shared.step import Tensors

STEPS = 2
SHAPE = (8, 4)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("reshard", [True, False], ids=["gathered anew", "kept"])
def test_cut_along_two_axes(ranks: Ranks, reshard: bool) -> None:
    def drawn(seed: int) -> Tensors:
        return {name: integers(SHAPE, torch.float64, seed=16 * seed + place) for place, name in enumerate(CUTS)}

    values, weights = drawn(0), [[drawn(1), drawn(2)], [drawn(3), drawn(4)]]
    got = ranks.run(cut_twice, steps=STEPS, reshard=reshard, values=values, weights=weights)
    for step, of_step in enumerate(weights):
        expected = {f"{name} in forward": value for name, value in values.items()}
        gradients = {name: torch.stack([of_rank[name] for of_rank in of_step]).mean(0) for name in CUTS}
        values = {name: value - gradients[name] for name, value in values.items()}
        expected |= values | {f"{name} gradient": gradient for name, gradient in gradients.items()}
        assert_same([told[step] for told in got], [expected] * 4, ordered=False)
