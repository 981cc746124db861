"""Any layout with any features besides trains as one device does; a failure names the fewest features that it needs.

A feature that is off is simpler than one that is on. The thorough profile has hypothesis look for the smallest example;
the others take features from the example that fails, one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_gpuperf import Context, Ranks
from suites.hybrid.programs import training as programs
from suites.hybrid.programs.combination import MESHES, Combination, smallest
from suites.hybrid.programs.combinations import Features, ValidLoss, combined
from suites.hybrid.programs.training import Mesh
from suites.hybrid.reference import DTYPE, MAX_NORMS, STEPS, Case, assert_near, case, one_device
from suites.shared.course import BEYOND, IGNORED
from suites.shared.llama import Config
from suites.shared.strategies import seeds

THOROUGH = settings().max_examples >= 2000
CONFIG = Config(kv_heads=4)
"""Heads of keys that four ranks split."""


ALL: dict[str, Any] = {"recompute": True, "accumulate": True, "lazy": True, "clips": True, "pads": True}


def padded(given_case: Case, seed: int) -> Case:
    """Sequences of unlike length: what comes after a sequence's end is no target; one sequence of a batch has none."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for tokens, target in given_case.batches:
        ends = torch.randint(1, target.shape[1] + 1, (len(target),), generator=generator)
        ends[int(torch.randint(len(target), (1,), generator=generator))] = 0
        ends[int(ends.argmax())] = target.shape[1]
        batches.append((tokens, target.masked_fill(torch.arange(target.shape[1]) >= ends[:, None], IGNORED)))
    return given_case._replace(batches=batches)


def assert_combined(ranks: Ranks, given: Combination, program: Callable[..., Any] = combined) -> None:
    drawn = case(
        given.mesh, config=CONFIG, length=8, microbatch=1, microbatches=2, seed=given.seed, schedule=given.schedule
    )
    drawn = padded(drawn, given.seed) if given.pads else drawn
    max_norms = MAX_NORMS if given.clips else (BEYOND,) * STEPS
    expected = one_device(drawn, max_norms)
    got = ranks.run(program, **drawn.arguments | {"max_norms": max_norms}, features=given.features)
    for rank, (norms, gradients, parameters) in enumerate(got):
        what = f"{given}: rank {rank}"
        for name, tensor in gradients.items():
            assert_near(tensor, expected.gradients[name], expected.rtol, f"{what}, step 1, {name} gradient")
        for step, norm in enumerate(norms):
            where = f"{what}, step {step + 1}, norm"
            assert_near(torch.tensor(norm, dtype=DTYPE), expected.norms[step], expected.rtol, where)
        for name, tensor in parameters.items():
            assert_near(tensor, expected.parameters[name], expected.rtol, f"{what}, step {STEPS}, {name}")


def assert_or_name_fewest(ranks: Ranks, given: Combination, program: Callable[..., Any] = combined) -> None:
    """As ``assert_combined``; the message is about the fewest features that still fail.

    Raises:
        AssertionError: the combination fails.
    """
    messages: dict[str, str] = {}

    def fails(one: Combination) -> bool:
        if str(one) not in messages:
            messages[str(one)] = ""
            try:
                assert_combined(ranks, one, program)
            except AssertionError as wrong:
                messages[str(one)] = str(wrong)
        return bool(messages[str(one)])

    if fails(given):
        fewest = smallest(given, fails)
        raise AssertionError(f"{messages[str(fewest)]}; these features are the fewest that fail of {given}")


def always(test: Callable[..., None]) -> Callable[..., None]:
    """Three combinations that no run leaves out; the thorough profile draws them, and so can look for smaller ones."""
    if THOROUGH:
        return test
    first = Combination(mesh={"shard": 2, "tp": 2}, zero=2, schedule="1F1B", seed=1, **ALL)
    second = Combination(mesh={"shard": 2, "cp": 2}, zero=1, schedule="GPipe", seed=1, **ALL)
    third = Combination(mesh={"shard": 2, "ep": 2}, zero=2, seed=1, **ALL)
    return example(given=first)(example(given=second)(example(given=third)(test)))


@pytest.mark.long
@pytest.mark.ranks(4)
@pytest.mark.examples(1.0 if THOROUGH else 0.04)  # each builds a model and its process groups on every rank
@given(
    given=st.builds(
        Combination,
        mesh=st.sampled_from(MESHES),
        recompute=st.booleans(),
        compiled=st.booleans() if THOROUGH else st.just(False),  # seconds on each rank
        zero=st.sampled_from([3, 2, 1, 0]),
        accumulate=st.booleans(),
        lazy=st.booleans(),
        clips=st.booleans(),
        pads=st.booleans(),
        schedule=st.sampled_from(sorted(programs.SCHEDULES)),
        seed=seeds,
    )
)
@always
def test_as_one_device(ranks: Ranks, given: Combination) -> None:
    (assert_combined if THOROUGH else assert_or_name_fewest)(ranks, given)


class _MeanOfMeans(ValidLoss):
    """Counts sequences that go one by one alike, however many tokens each has."""

    def __call__(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        valid = int((target != IGNORED).sum())
        return super().__call__(logits, target) * (target.numel() / max(valid, 1) if len(target) == 1 else 1.0)


def of_each_sequence(ctx: Context, **kwargs: Any) -> Any:
    with mock.patch.dict(combined.__globals__, ValidLoss=_MeanOfMeans):
        return combined(ctx, **kwargs)


@pytest.mark.ranks(4)
def test_a_failure_names_the_fewest_features(ranks: Ranks) -> None:
    given = Combination(recompute=True, accumulate=True, pads=True, seed=1)
    fewest = "shard 4 with accumulation, padding"
    with pytest.raises(AssertionError, match=rf"^{fewest}: rank 0, step .* fewest that fail of {given}$"):
        assert_or_name_fewest(ranks, given, of_each_sequence)


def sums_twice(one: Combination) -> bool:
    return "tp" in one.mesh and one.clips


def takes_a_stale_shard(one: Combination) -> bool:
    return one.features.zero == 2 and (one.recompute or one.pads)


def never_waits(one: Combination) -> bool:
    return one.lazy and one.accumulate


@pytest.mark.parametrize(
    ("fails", "mesh", "fewest"),
    [
        (sums_twice, {"cp": 2, "tp": 2}, "tp 4 with clipping"),
        (takes_a_stale_shard, {"cp": 2, "tp": 2}, "shard 4 with ZeRO-2, padding"),
        (never_waits, {"shard": 2, "ep": 2}, "shard 4 with accumulation, lazy reduction"),
        (lambda one: one.recompute, {"shard": 2, "ep": 2}, "shard 4 with recomputation"),
        (lambda one: "ep" in one.mesh, {"shard": 2, "ep": 2}, "ep 4 with nothing besides"),
        (lambda one: one.schedule == "GPipe", {"pp": 2, "cp": 2}, "shard 2 x pp 2 with GPipe"),
        (lambda one: True, {"pp": 2, "tp": 2}, "shard 4 with nothing besides"),
    ],
    ids=["axis and feature", "either of two", "two features", "feature", "axis", "schedule", "anything"],
)
def test_features_that_a_failure_does_not_need(fails: Callable[[Combination], bool], mesh: Mesh, fewest: str) -> None:
    assert str(smallest(Combination(mesh=mesh, schedule="GPipe", zero=2, **ALL), fails)) == fewest


@pytest.mark.ranks(4)
def test_experts_on_other_meshes_are_refused(ranks: Ranks) -> None:
    given = case({"ep": 2, "tp": 2}, config=CONFIG, length=8, microbatch=1, microbatches=2, seed=1)
    with pytest.raises(ValueError, match=r"^experts need a mesh of shard and ep, whose ep divides 4, got \{'ep': 2"):
        ranks.run(combined, **given.arguments, features=Features())


def test_a_plainer_mesh_switches_nothing_on() -> None:
    """On the first mesh neither the stage of ZeRO nor the schedule makes a difference; on ``shard`` both could."""
    seen: list[Combination] = []

    def fails(one: Combination) -> bool:
        seen.append(one)
        return True

    smallest(Combination(mesh={"shard": 2, "tp": 2}, zero=1, schedule="GPipe"), fails)
    assert {(one.zero, one.schedule) for one in seen} == {(3, "1F1B")}


@pytest.mark.parametrize("seed", range(3))
def test_padding_is_uneven(seed: int) -> None:
    """Some sequences count all tokens, one counts none, and the ranks' shares have unlike numbers of counted tokens."""
    for _, target in padded(
        case({"shard": 4}, config=CONFIG, length=8, microbatch=1, microbatches=2, seed=seed), seed
    ).batches:
        valid = (target != IGNORED).sum(1)
        assert int(valid.min()) == 0
        assert int(valid.max()) == target.shape[1]
        assert len({int(share.sum()) for share in valid.chunk(4)}) > 1
