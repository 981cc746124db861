"""Gradient scalers leave out what overflows, optimizer by optimizer; users change the scale."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.data_parallel.programs.scaling import (
    CHANGES,
    MOMENTUM,
    NAMES,
    OVERFLOWS,
    START,
    STEPS,
    given_to,
    parameters,
    scaled,
)
from suites.shared.comparison import assert_same
from suites.shared.step import Tensors

FASTER = 3
"""After this step the scale grows by 8 in each step that nothing overflows in."""


@pytest.mark.ranks(2)
@pytest.mark.parametrize("enabled", [True, False], ids=["scaling", "disabled"])
@pytest.mark.parametrize("sharded", [False, True], ids=["replicas", "shards"])
def test_several_optimizers(ranks: Ranks, sharded: bool, enabled: bool) -> None:
    """A loss that overflows on one rank makes its optimizer skip the step on all; the others take theirs."""
    got = ranks.run(scaled, sharded=sharded, enabled=enabled)
    scales = scales_of_steps() if enabled else [1.0] * STEPS
    for_each = [trained([rank] if sharded else [0, 1], enabled=enabled) for rank in range(2)]
    for step in range(STEPS):
        scale = {"scale": torch.tensor(scales[step], dtype=torch.float64)}
        assert_same([told[step] for told in got], [values[step] | scale for values in for_each])


def scales_of_steps() -> list[float]:
    """The scale after each step, by the rule of its growth."""
    scale, factor, backoff, interval = START
    well, found = 0, []
    for step in range(STEPS):
        if step == 2:
            backoff = 0.5
        if step == FASTER:
            factor, interval = 8.0, 1
        given = CHANGES[step].scale if step in CHANGES else None
        if given is not None:
            scale = given  # and the count of good steps stays
        elif step in OVERFLOWS:
            scale, well = scale * backoff, 0
        else:
            well += 1
            if well == interval:
                scale, well = scale * factor, 0
        found.append(scale)
    return found


def trained(among: list[int], *, enabled: bool) -> list[Tensors]:
    """All parameters after each step, of the mean gradients of some ranks; SGD written out."""
    values = parameters()
    momentum = {name: torch.zeros_like(value) for name, value in values.items()}
    found = []
    for step in range(STEPS):
        of_ranks = [whole(given_to(rank, step, 2), enabled=enabled) for rank in among]
        for name in NAMES:
            if enabled and step in OVERFLOWS and OVERFLOWS[step][1] == name:
                continue
            gradient = torch.stack([gradients[name] for gradients in of_ranks]).mean(0)
            kept = 0.0 if name == "sparse" else MOMENTUM
            momentum[name] = kept * momentum[name] + gradient
            values[name] = values[name] - momentum[name]
        found.append(dict(values))
    return found


def whole(given: Tensors, *, enabled: bool) -> Tensors:
    """A rank's gradients, the sparse one's of all rows."""
    gradients = {name: given[name] if enabled else given[name].nan_to_num(posinf=8.0) for name in NAMES}
    sparse = torch.zeros_like(parameters()["sparse"])
    return gradients | {"sparse": sparse.index_add(0, given["rows"], gradients["sparse"])}
