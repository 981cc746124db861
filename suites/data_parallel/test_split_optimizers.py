"""An optimizer whose state a group shares trains as one that has all of it, and its whole state is that one's."""

from __future__ import annotations

import pytest

from pytest_gpuperf import Ranks
from suites.data_parallel.programs.split_optimizers import (
    AFTER,
    BEFORE,
    KINDS,
    Training,
    parameters,
    told_of,
    trained,
)
from suites.shared.comparison import assert_same
from suites.shared.step import Tensors


@pytest.mark.ranks(3)
@pytest.mark.parametrize(("kind", "buckets"), [("adam", False), ("scalars", True), ("momentum", True)])
def test_a_group_without_rank_0(ranks: Ranks, kind: str, buckets: bool) -> None:
    """To the last bit: each parameter's step is the same operation on the same numbers."""
    outside, *of_group = ranks.run(trained, kind=kind, buckets=buckets)
    assert outside is None
    assert_same([told for told in of_group if told is not None], [expected(kind)] * 2, ordered=False)


def expected(kind: str) -> Tensors:
    made, options = KINDS[kind]
    training = Training.of(parameters(), lambda groups: made(groups, **options))
    told: Tensors = {}
    for step in range(BEFORE):
        told |= training.train(step)
        told |= told_of(training.optimizer.state_dict(), f"after {step}")
    for step in range(BEFORE, BEFORE + AFTER):
        told |= training.train(step)
    return told | told_of(training.optimizer.state_dict(), "at last")
