"""Any layout with any features besides trains as one device does; the thorough profile finds the smallest pair.

A feature that is off is simpler than one that is on: where hypothesis looks for the smallest example, only the features
that a failure needs are left.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_gpuperf import Ranks
from suites.hybrid.programs import training as programs
from suites.hybrid.programs.combinations import Features, combined, replicates
from suites.hybrid.programs.training import Mesh
from suites.hybrid.reference import DTYPE, MAX_NORMS, STEPS, Case, assert_near, case, one_device
from suites.shared.course import BEYOND, IGNORED
from suites.shared.llama import Config
from suites.shared.strategies import seeds

MESHES: list[Mesh] = [
    {"shard": 4},
    {"replicate": 2, "shard": 2},
    {"tp": 4},
    {"shard": 2, "tp": 2},
    {"cp": 4},
    {"shard": 2, "cp": 2},
    {"cp": 2, "tp": 2},
    {"pp": 2, "tp": 2},
    {"shard": 2, "pp": 2},
    {"pp": 2, "cp": 2},
]
THOROUGH = settings().max_examples >= 2000
CONFIG = Config(kv_heads=4)
"""Heads of keys that four ranks split."""


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


def assert_combined(ranks: Ranks, given_case: Case, features: Features, clips: bool) -> None:
    max_norms = MAX_NORMS if clips else (BEYOND,) * STEPS
    expected = one_device(given_case, max_norms)
    got = ranks.run(combined, **given_case.arguments | {"max_norms": max_norms}, features=features)
    what = f"{given_case.mesh}, {features}"
    for rank, (norms, gradients, parameters) in enumerate(got):
        for name, tensor in gradients.items():
            assert_near(
                tensor, expected.gradients[name], expected.rtol, f"{what}, rank {rank}, step 1, {name} gradient"
            )
        for step, norm in enumerate(norms):
            where = f"{what}, rank {rank}, step {step + 1}, norm"
            assert_near(torch.tensor(norm, dtype=DTYPE), expected.norms[step], expected.rtol, where)
        for name, tensor in parameters.items():
            where = f"{what}, rank {rank}, step {STEPS}, {name}"
            assert_near(tensor, expected.parameters[name], expected.rtol, where)


def always(test: Callable[..., None]) -> Callable[..., None]:
    """Two combinations that no run leaves out; the thorough profile draws them, and so can look for smaller ones."""
    if THOROUGH:
        return test
    first = example({"shard": 2, "tp": 2}, True, False, 2, True, True, True, True, "1F1B", 1)
    second = example({"shard": 2, "cp": 2}, True, False, 1, True, True, True, True, "GPipe", 1)
    return first(second(test))


@pytest.mark.long
@pytest.mark.ranks(4)
@pytest.mark.examples(1.0 if THOROUGH else 0.04)  # each builds a model and its process groups on every rank
@given(
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
@always
def test_as_one_device(
    ranks: Ranks,
    mesh: Mesh,
    recompute: bool,
    compiled: bool,
    zero: int,
    accumulate: bool,
    lazy: bool,
    clips: bool,
    pads: bool,
    schedule: str,
    seed: int,
) -> None:
    stage = zero if zero > 1 or replicates(mesh) else 3
    features = Features(recompute=recompute, compiled=compiled, zero=stage, accumulate=accumulate, lazy=lazy)
    drawn = case(mesh, config=CONFIG, length=8, microbatch=1, microbatches=2, seed=seed, schedule=schedule)
    assert_combined(ranks, padded(drawn, seed) if pads else drawn, features, clips)


@pytest.mark.parametrize("seed", range(3))
def test_padding_is_uneven(seed: int) -> None:
    """Of some sequences all tokens count, of one none, and the ranks' shares have unlike numbers of them."""
    for _, target in padded(
        case({"shard": 4}, config=CONFIG, length=8, microbatch=1, microbatches=2, seed=seed), seed
    ).batches:
        valid = (target != IGNORED).sum(1)
        assert int(valid.min()) == 0
        assert int(valid.max()) == target.shape[1]
        assert len({int(share.sum()) for share in valid.chunk(4)}) > 1
