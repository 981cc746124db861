"""An optimizer that gets another one's state has its settings and state, and takes its steps."""

from __future__ import annotations

import pytest

from pytest_gpuperf import Ranks
from suites.checkpoint.programs.optimizers import FORMS, MAKERS, NAMES, Kind, passed
from suites.shared.comparison import assert_same
from suites.shared.step import Tensors

FAILING = {
    # torch 2.13 finds no device where there is no state.
    ("without state", True): {"whole", "broadcast"},
    ("without state", False): {"whole", "broadcast"},
    # torch 2.13 looks for what the receiving optimizer has, or gives it a tensor where it needs a shard.
    ("more state", True): {"flat", "whole", "broadcast"},
    ("more state", False): {"flat", "broadcast"},
}
"""Forms that torch refuses, by kind and whether ranks share the parameters."""


@pytest.mark.ranks(2)
@pytest.mark.parametrize("shard", [True, False], ids=["sharded", "replicated"])
@pytest.mark.parametrize("kind", MAKERS)
def test_a_state_of_an_optimizer(ranks: Ranks, kind: Kind, shard: bool) -> None:
    for form in FORMS:
        if form in FAILING.get((kind, shard), ()):
            continue
        told = ranks.run(passed, kind=kind, form=form, shard=shard)
        assert [names for names, _ in told] == [NAMES] * 2, f"{form}: names of each rank {[names for names, _ in told]}"
        got = [[one.unpacked() for one in packed] for _, packed in told]
        for moment, first, second in (("loaded", 0, 1), ("a step later", 2, 3)):
            have, want = ([named(of_rank[which], f"{form}, {moment}") for of_rank in got] for which in (second, first))
            assert_same(have, want, ordered=False)


def named(tensors: Tensors, where: str) -> Tensors:
    return {f"{where}, {name}": value for name, value in tensors.items()}
