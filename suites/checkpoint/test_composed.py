"""A state of a model of many parts, and of several optimizers, enters another one whole, in any form."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.checkpoint.programs import composed as programs
from suites.checkpoint.programs.state_dicts import Form
from suites.shared.comparison import assert_same
from suites.shared.step import Tensors

NAMES = [
    "compiled.bias",
    "compiled.weight",
    "embedding.weight",
    "frozen.weight",
    "head.bias",
    "head.weight",
    "idle",
    "recomputed.weight",
    "scaled._extra_state",
    "scaled.mean",
    "scaled.weight",
]

pytestmark = pytest.mark.ranks(2)


def assert_passed(found: list[Tensors], where: str) -> None:
    """All but the buffer that no state has is the same, now and after a step."""
    before, loaded, after, went_on = found
    for got, expected in ((loaded, before), (went_on, after)):
        own, others = got.pop("scaled.cache"), expected.pop("scaled.cache")
        assert not torch.equal(own, others), f"{where}: a buffer that is not persistent has passed"
        assert_same([got], [expected])


@pytest.mark.parametrize("shard", [True, False], ids=["sharded", "replicated"])
@pytest.mark.parametrize("flat", [True, False], ids=["flat", "nested"])
def test_a_state_that_passes(ranks: Ranks, shard: bool, flat: bool) -> None:
    forms = [
        Form(whole=False, flat=flat, on_cpu=True),
        Form(whole=False, flat=flat, on_cpu=False, at_once=True),
        Form(whole=True, flat=flat, broadcast=True, on_cpu=True),
        Form(whole=True, flat=flat, broadcast=False, on_cpu=False),
    ]
    for form in forms:
        got = ranks.run(programs.passed, shard=shard, form=form)
        for rank, (names, _, found) in enumerate(got):
            held = rank == 0 or not (form.whole and form.on_cpu)
            assert names == (NAMES if held else []), f"{form}, rank {rank} has {names}"
            assert_passed([packed.unpacked() for packed in found], f"{form}, rank {rank}")


@pytest.mark.parametrize("shard", [True, False], ids=["sharded", "replicated"])
@pytest.mark.parametrize("broadcast", [True, False], ids=["broadcast", "on all ranks"])
def test_a_state_that_lacks_parts(ranks: Ranks, shard: bool, broadcast: bool) -> None:
    """They stay as they are, and all else is loaded."""
    trained = [name for name in NAMES if name != "frozen.weight"]
    for rank, got in enumerate(ranks.run(programs.in_part, shard=shard, broadcast=broadcast, strict=False)):
        where = f"rank {rank}"
        assert got.names == (trained if rank == 0 or not broadcast else []), f"{where} has {got.names}"
        # A state that rank 0 broadcasts is put into the model's own, so nothing is missing in what the model gets.
        assert got.missing == ([] if broadcast else ["frozen.weight", "head.bias"]), f"{where} misses {got.missing}"
        assert got.unexpected == (["tail.bias"] if rank == 0 or not broadcast else []), f"{where}: {got.unexpected}"
        second = got.second.unpacked()
        expected = got.first.unpacked() | {
            name: second[name] for name in ("frozen.weight", "head.bias", "scaled.cache")
        }
        found = got.loaded.unpacked()
        fresh = {name: value for name, value in found.items() if name.startswith("scaled.weight: ")}
        for name in [name for name in expected if name.startswith("scaled.weight: ")]:
            del expected[name]
        # The optimizer makes this state: zeros now, or in its next step.
        assert bool(fresh) == broadcast, f"{where}: state of a weight that the checkpoint has none of: {fresh}"
        assert not any(value.any() for name, value in fresh.items() if "sum" in name), f"{where}: {fresh}"
        assert_same([{name: value for name, value in found.items() if name not in fresh}], [expected], ordered=False)


@pytest.mark.parametrize("broadcast", [True, False], ids=["broadcast", "on all ranks"])
def test_a_state_that_must_not_lack_parts(ranks: Ranks, broadcast: bool) -> None:
    with pytest.raises(RuntimeError, match=r"head\.bias"):
        ranks.run(programs.in_part, shard=True, broadcast=broadcast, strict=True)


@pytest.mark.parametrize("shard", [True, False], ids=["sharded", "replicated"])
def test_a_state_of_two_layers(ranks: Ranks, shard: bool) -> None:
    for first, second, loaded in ranks.run(programs.of_submodule, shard=shard):
        expected = second.unpacked()
        layer = {name: first.unpacked()[name] for name in ("history", "scaled.weight", "scaled.mean", "frozen.weight")}
        assert_same([loaded.unpacked()], [expected | layer])


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "in parts"])
def test_an_optimizer_with_an_empty_group(ranks: Ranks, whole: bool) -> None:
    for first, second in ranks.run(programs.with_an_empty_group, whole=whole):
        assert_same([second.unpacked()], [first.unpacked()])


@pytest.mark.parametrize("pending", [True, False], ids=["between backward and step", "before backward"])
@pytest.mark.parametrize("kind", programs.KINDS)
def test_a_state_that_is_asked_for_before_the_first_step(ranks: Ranks, kind: str, pending: bool) -> None:
    """Parameters, gradients and rates stay; a step with what was pending is that of an optimizer that nobody asked."""
    for packed in ranks.run(programs.asked_between, kind=kind, pending=pending):
        before, after, stepped, expected = [one.unpacked() for one in packed]
        assert_same([after], [before])
        if pending or kind != "a tensor's rate":  # torch counts one step more when it makes AdamW's state
            assert_same([stepped], [expected])
