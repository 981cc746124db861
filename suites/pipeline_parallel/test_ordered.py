"""A schedule of one's own has the gradients of the whole model, exactly."""

from __future__ import annotations

import pytest

from pytest_gpuperf import Ranks
from suites.pipeline_parallel.programs.ordered import train_ordered
from suites.pipeline_parallel.programs.stages import votes
from suites.pipeline_parallel.reference.model import case, whole_model
from suites.shared.comparison import assert_same
from suites.shared.step import Tensors

# Two ranks with two stages each: what one does at a point in time the other has from the next one on.
WHOLE = [
    "0F0 0F1 2F0 2F1 - - 2B0 2B1 - 0B0 0B1",
    "- 1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1 - -",
]
SPLIT = [
    "0F0 0F1 2F0 2F1 - - 2I0 2I1 2W0 0I0 0I1 2W1 0W1 0W0",
    "- 1F0 1F1 3F0 3F1 3I0 3I1 1I0 1I1 3W0 3W1 1W1 1W0 -",
]


@pytest.mark.ranks(2)
@pytest.mark.skipif(not votes(), reason="known to run since torch 2.12")
@pytest.mark.parametrize("orders", [WHOLE, SPLIT], ids=["whole backwards", "backwards in two parts"])
def test_an_order_of_your_own(ranks: Ranks, orders: list[str]) -> None:
    microbatches = 2
    whole = case("Interleaved1F1B", [[3], *[[3]] * 4], microbatches, 3, "linear", seed=1)
    target = microbatches * whole.target
    got = ranks.run(
        train_ordered,
        orders=orders,
        stages=whole.stages,
        x=whole.x,
        target=target,
        microbatches=microbatches,
    )
    expected: list[Tensors] = [{}, {}]
    for step in (1, 2):
        results = whole_model(whole._replace(x=step * whole.x))
        for name, value in results.items():
            if name.endswith(" gradient"):
                stage = int(name.split(".")[0].removeprefix("stage "))
                expected[stage % 2][f"{name.removesuffix(' gradient')} {step}"] = value
        expected[1] |= {f"losses {step}": microbatches * results["losses"], "output": results["output"]}
    assert_same(got, expected, ordered=False)
