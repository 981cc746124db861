"""A state in any form holds what the training had, and a training that gets it goes on with the same numbers."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuperf import Ranks
from suites.checkpoint.programs import state_dicts as programs
from suites.checkpoint.programs.layouts import Layout
from suites.checkpoint.programs.state_dicts import Form, Passed
from suites.checkpoint.programs.training import Run, Setup
from suites.shared.comparison import assert_close, assert_same
from suites.shared.llama import Config, initial_weights
from suites.shared.step import Tensors
from suites.shared.strategies import seeds

UNEVEN = Config(layers=1, heads=2, kv_heads=2, head_dim=2, hidden=5, vocabulary=7)
"""Rows that no number of ranks divides."""
BEFORE, AFTER = 2, 2
LAYOUTS = (Layout(replicate=2), Layout(shard=2), Layout(shard=3), Layout(replicate=2, shard=2))


def setup(layout: Layout, seed: int = 1) -> Setup:
    return Setup(config=UNEVEN, layout=layout, seed=seed)


def assert_run(got: Run, expected: Run, where: str) -> None:
    """Checks that two runs have the same contents, losses and parameters, to the last bit."""
    for name, value in expected.checkpoint.unpacked().items():
        assert_close(got.checkpoint.unpacked()[name], value, f"{where}, loaded, {name}")
    assert got.losses == expected.losses, f"{where}: losses {got.losses}, not {expected.losses}"
    for name, value in expected.end.unpacked().items():
        assert_close(got.end.unpacked()[name], value, f"{where}, after {AFTER} more steps, {name}")


def parameters_of(run: Run) -> Tensors:
    names = initial_weights(UNEVEN, run.checkpoint.unpacked()["norm.weight"].dtype, 1)
    return {name: run.checkpoint.unpacked()[name] for name in names}


def assert_passed(got: list[Passed], layout: Layout, form: Form) -> None:
    for rank, of_rank in enumerate(got):
        assert_run(of_rank.after, of_rank.before, f"{layout}, {form}, rank {rank}")
    whole = parameters_of(got[0].before)
    if form.whole:  # rank 0 has all, and nobody else has anything
        assert_same([of_rank.state.unpacked() for of_rank in got], [whole, *[{}] * (len(got) - 1)], ordered=False)
        assert got[0].devices == ({"cpu"} if form.on_cpu else got[0].devices)
        if form.flat:
            expected = {f"state.{name}.{key}" for name in whole for key in ("exp_avg", "exp_avg_sq", "step")}
            assert expected <= set(got[0].names), f"lacks {sorted(expected - set(got[0].names))}"


@pytest.mark.ranks(4)
@pytest.mark.examples(0.12)  # each builds two models and trains both
@given(
    layout=st.sampled_from(LAYOUTS),
    whole=st.booleans(),
    broadcast=st.booleans(),
    flat=st.booleans(),
    at_once=st.booleans(),
    seed=seeds,
)
@example(layout=Layout(shard=3), whole=True, broadcast=True, flat=False, at_once=True, seed=1)
@example(layout=Layout(shard=2), whole=True, broadcast=True, flat=True, at_once=False, seed=1)
@example(layout=Layout(replicate=2, shard=2), whole=True, broadcast=False, flat=False, at_once=True, seed=1)
def test_a_state_that_passes_to_another_training(
    ranks: Ranks, layout: Layout, whole: bool, broadcast: bool, flat: bool, at_once: bool, seed: int
) -> None:
    form = Form(whole=whole, broadcast=broadcast, flat=flat, at_once=at_once, on_cpu=whole)
    got = ranks.resized(layout.ranks).run(
        programs.passed, job=setup(layout, seed), form=form, before=BEFORE, after=AFTER
    )
    assert_passed(got, layout, form)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("broadcast", [True, False], ids=["broadcast", "on all ranks"])
def test_a_whole_state_of_tensors_that_ranks_split(ranks: Ranks, broadcast: bool) -> None:
    """Rows of some matrices are dealt out twice; of others rows go to one group of ranks, and columns to another."""
    even = Config(layers=1, heads=2, kv_heads=2, head_dim=2, hidden=4, vocabulary=8)
    layout, form = Layout(shard=2, tensor=2), Form(whole=True, broadcast=broadcast)
    got = ranks.run(programs.passed, job=Setup(config=even, layout=layout, seed=1), form=form, before=1, after=1)
    assert_passed(got, layout, form)


@pytest.mark.ranks(3)  # which divides no parameter's rows
@pytest.mark.parametrize("by_hand", [True, False], ids=["assigned by hand", "broadcast and assigned"])
def test_a_model_that_is_made_without_storage(ranks: Ranks, by_hand: bool) -> None:
    """The optimizer trains the tensors that were assigned: two steps move them as those of an ordinary model."""
    job = setup(Layout(shard=3))
    expected = ranks.run(programs.ordinary, job=job, steps=AFTER)
    got = ranks.run(programs.assigned, job=job, by_hand=by_hand, steps=AFTER)
    for rank, (have, want) in enumerate(zip(got, expected, strict=True)):
        assert_run(have, want, f"rank {rank}")
    whole = initial_weights(UNEVEN, job.dtype, job.seed)
    assert_same([parameters_of(run) for run in got], [whole] * 3, ordered=False)


@pytest.mark.ranks(2)
def test_a_state_of_what_is_trained(ranks: Ranks) -> None:
    weights = initial_weights(UNEVEN, setup(LAYOUTS[1]).dtype, 1)
    expected = sorted(name for name in weights if "norm" not in name and "embedding" not in name)
    for rank, names in enumerate(ranks.run(programs.without_frozen, job=setup(Layout(shard=2)))):
        assert sorted(names) == expected, f"rank {rank} has {sorted(names)}"


@pytest.mark.ranks(2)
@pytest.mark.parametrize("keep", [True, False])
def test_a_state_of_a_part_of_the_model(ranks: Ranks, keep: bool) -> None:
    prefix = "layers.0.feed_forward." if keep else ""
    expected = sorted(f"{prefix}{name}.weight" for name in ("gate", "up", "down"))
    for rank, names in enumerate(ranks.run(programs.of_submodule, job=setup(Layout(shard=2)), keep=keep)):
        assert sorted(names) == expected, f"rank {rank} has {sorted(names)}"


@pytest.mark.ranks(2)
def test_a_state_that_lacks_a_tensor(ranks: Ranks) -> None:
    job = setup(Layout(shard=2))
    got = ranks.run(programs.incomplete, job=job, strict=False)
    assert got == [(["head.weight"], ["tail.weight"])] * 2, f"missing and unexpected names of each rank: {got}"
    with pytest.raises(RuntimeError, match=r"head\.weight"):
        ranks.run(programs.incomplete, job=job, strict=True)
