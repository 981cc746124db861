"""torch's functions that clip take the norm of averaged gradients by its formula, and scale what they are given."""

from __future__ import annotations

import math

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.data_parallel.programs.clipping import CLIPS, Clip, clipped, gradients
from suites.shared.comparison import assert_close
from suites.shared.step import Tensors

EPSILON = 1e-6
"""torch adds it to the norm."""


@pytest.mark.ranks(2)
def test_ways_to_clip(ranks: Ranks) -> None:
    for rank, told in enumerate(ranks.run(clipped)):
        for (name, clip), got in zip(CLIPS.items(), told, strict=True):
            want = expected(clip)
            assert sorted(got) == sorted(want), f"rank {rank}, {name}"
            for key, value in want.items():
                # A few dozen roundings of float32, or a few of one that a parameter has.
                assert_close(got[key].double(), value, f"rank {rank}, {name}, {key}", rtol=1e-5)


def expected(clip: Clip) -> Tensors:
    """The norm and the gradients, in float64."""
    own, other = gradients(0), gradients(1)
    mean = {name: (own[name].double() + other[name].double()) / 2 for name in own}
    if not any(name == "first" for name in of(clip, mean)):
        return mean | {"norm": torch.tensor(0.0, dtype=torch.float64)}
    given = of(clip, mean)
    if clip.norm_type is None:
        return mean | {name: value.clamp(-clip.most, clip.most) for name, value in given.items()}
    flat = torch.cat([value.flatten().abs() for value in given.values()])
    p = clip.norm_type
    norm = float(flat.max()) if p == math.inf else float(flat.pow(p).sum()) ** (1 / p)
    share = min(1.0, clip.most / (norm + EPSILON))
    return mean | {name: share * value for name, value in given.items()} | {"norm": torch.tensor(norm).double()}


def of(clip: Clip, mean: Tensors) -> Tensors:
    """The gradients that the call is given."""
    names = {"all": list(mean), "one": ["first"], "unused": [], "nothing": []}[clip.of]
    return {name: mean[name] for name in names}
