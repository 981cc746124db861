"""DeepSpeed trains as one process does: losses, gradients and weights, exactly, in every stage and with offload.

Weights, inputs and targets are -1, 0 or 1, and learning rate, momentum, rows and ranks powers of 2, so that each value
is a whole number of some power of 2. Of two steps the losses of the second need the most bits: inputs <= 4, hidden
features <= 8 and outputs <= 3 keep weights below 2 after the first step, hidden activations below 2**3, outputs below
2**7, and the sum over 2 rows of 3 outputs below 2**10; with 4 ranks, 2 microbatches and 2 rows a weight is a multiple
of 2**-2 / 16 = 2**-6, an output of 2**-12, a loss of 2**-13: 23 bits, and float32 has 24.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Ranks
from suites.deepspeed import programs
from suites.deepspeed.programs import Sgd, Weights, Zero
from suites.shared.comparison import assert_close
from suites.shared.inputs import integers
from suites.shared.step import Step, once
from suites.shared.strategies import seeds

# DeepSpeed keeps much in its modules, which another test's ranks would find there. To import it takes seconds, so a
# test tries all that is alike.
pytestmark = pytest.mark.ranks(2, isolation="process")

needs_deepspeed = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="DeepSpeed is not installed: pip install 'pytest-gpuperf[deepspeed]'"
)

STEPS = 2
SGD = Sgd(lr=2**-2, momentum=2**-1)

STAGES = [
    *(Zero(stage=stage) for stage in range(4)),
    *(Zero(stage=stage, offload_optimizer=True) for stage in (1, 2, 3)),
    Zero(stage=3, offload_optimizer=True, offload_parameters=True),
]

Batches = list[list[tuple[torch.Tensor, torch.Tensor]]]
Drawn = tuple[Weights, Batches]


def problem(*, degree: int, inputs: int, hidden: int, outputs: int, rows: int, microbatches: int, seed: int) -> Drawn:
    """Weights, and for each step the microbatches of all ranks; each rank has its own rows."""

    def ones(*shape: int, part: int) -> torch.Tensor:
        return integers(shape, torch.float32, seed=seed * 64 + part, low=-1, high=1)

    weights = {"0.weight": ones(hidden, inputs, part=0), "2.weight": ones(outputs, hidden, part=1)}
    batches = [
        [
            (ones(degree * rows, inputs, part=part), ones(degree * rows, outputs, part=part + 1))
            for part in range(8 * step + 2, 8 * step + 2 + 2 * microbatches, 2)
        ]
        for step in range(STEPS)
    ]
    return weights, batches


def one_process(weights: Weights, batches: Batches, *, degree: int) -> dict[str, Any]:
    """One process, float64, autograd.grad and SGD's definition, over all microbatches and ranks at once."""
    first, second = (weights[name].double() for name in ("0.weight", "2.weight"))
    momenta = [torch.zeros_like(first), torch.zeros_like(second)]
    losses: list[list[torch.Tensor]] = []
    gradients: tuple[torch.Tensor, ...] = ()
    for batch in batches:
        leaves = [first.requires_grad_(), second.requires_grad_()]
        rows = batch[0][0].shape[0] // degree
        for x, target in batch:
            per_row = ((x.double() @ first.T).relu() @ second.T * target.double()).sum(dim=1)
            losses.append([part.sum().detach() / rows for part in per_row.chunk(degree)])
        x, target = (torch.cat(parts).double() for parts in zip(*batch, strict=True))
        mean = ((x @ first.T).relu() @ second.T * target).sum() / len(x)
        gradients = torch.autograd.grad(mean, leaves)
        momenta = [SGD.momentum * m + g for m, g in zip(momenta, gradients, strict=True)]
        first, second = (leaf.detach() - SGD.lr * m for leaf, m in zip(leaves, momenta, strict=True))
    return {
        "losses": [torch.stack(of_rank) for of_rank in zip(*losses, strict=True)],
        "gradients": {"0.weight": gradients[0], "2.weight": gradients[1]},
        "weights": {"0.weight": first, "2.weight": second},
    }


def assert_trains(
    ranks: Ranks, program: Callable[..., Step[dict[str, Any]]], drawn: Drawn, **kwargs: Any
) -> list[dict[str, Any]]:
    """What every rank ends with is the reference's, to the last bit."""
    weights, batches = drawn
    results = ranks.run(once, program, weights=weights, batches=batches, sgd=SGD, **kwargs)
    expected = one_process(weights, batches, degree=ranks.world_size)
    for rank, result in enumerate(results):
        assert_close(result["losses"].double(), expected["losses"][rank], f"rank {rank}, losses")
        for what in ("gradients", "weights"):
            for name, want in expected[what].items():
                assert_close(result[what][name].double(), want, f"rank {rank}, {what} of {name}")
    return results


problems = st.fixed_dictionaries(
    {
        "inputs": st.integers(1, 4),
        "hidden": st.integers(1, 8),
        "outputs": st.integers(1, 3),
        "rows": st.sampled_from([1, 2]),
        "microbatches": st.sampled_from([1, 2]),
        "seed": seeds,
    }
)

A_PROBLEM = {"inputs": 4, "hidden": 8, "outputs": 3, "rows": 2, "microbatches": 2, "seed": 1}


def assert_found(message: str, what: str, check: Callable[[], object]) -> None:
    """The check notices what is wrong, and says this of it."""
    noticed = ""
    try:
        check()
    except AssertionError as error:
        noticed = str(error)
    assert re.match(message, noticed), f"{what}: {noticed or 'nothing was noticed'}"


def assert_split(results: list[dict[str, Any]], weights: Weights, zero: Zero) -> None:
    """From stage 1 on each of R ranks holds an R-th of the momenta (Rajbhandari et al., 2020, section 5.1).

    Stages 1 and 2 pad all weights in a row to a multiple of 2 R, stage 3 each weight to one of R: with two weights,
    less than 2 momenta more on each rank. From stage 2 on the module has no gradients, in stage 3 no weights either.
    """
    total, degree = sum(weight.numel() for weight in weights.values()), len(results)
    for rank, held in enumerate(result["held"] for result in results):
        most = total if zero.stage == 0 else math.ceil(total / degree) + 1
        assert held["momenta"] <= most, f"rank {rank} holds {held['momenta']} momenta, not {most} at most: {zero}"
        if zero.stage >= 2:
            assert held["gradients"] == 0, f"rank {rank} holds {held['gradients']} gradients, not 0: {zero}"
        expected = 0 if zero.stage == 3 else total
        assert held["weights"] == expected, f"rank {rank} holds {held['weights']} weights, not {expected}: {zero}"
    assert sum(result["held"]["momenta"] for result in results) >= total * (degree if zero.stage == 0 else 1)


@needs_deepspeed
@given(zero=st.sampled_from(STAGES), sizes=problems)
def test_zero(ranks: Ranks, zero: Zero, sizes: dict[str, int]) -> None:
    drawn = problem(degree=ranks.world_size, **sizes)
    assert_split(assert_trains(ranks, programs.train, drawn, zero=zero), drawn[0], zero)


@needs_deepspeed
@pytest.mark.ranks(4, isolation="process")
def test_zero_on_four_ranks(ranks: Ranks) -> None:
    drawn = problem(degree=4, **A_PROBLEM)
    for zero in STAGES:
        assert_split(assert_trains(ranks, programs.train, drawn, zero=zero), drawn[0], zero)


SENT = [
    *((stage, "all_reduce") for stage in (0, 1, 2)),
    *((stage, "all_gather_into_tensor") for stage in (1, 2, 3)),
    (3, "reduce_scatter_tensor"),
]


UNSPLIT = {1: "holds 56 momenta, not 29 at most", 2: "holds 56 gradients, not 0", 3: "holds 56 weights, not 0"}


@needs_deepspeed
def test_what_is_wrong_is_found(ranks: Ranks) -> None:
    """A scale, gradients that stay on their rank, what a rank does not send, and a stage that splits less."""
    drawn, one_each = problem(degree=2, **A_PROBLEM), problem(degree=2, **{**A_PROBLEM, "microbatches": 1})
    train, at_once = partial(assert_trains, ranks, programs.train), r"rank 0, (losses|gradients of 0.weight): "
    for zero in STAGES:
        assert_found(at_once, f"a scale of 2, {zero}", partial(train, drawn, zero=zero, loss_scale=2.0))
    apart = partial(train, one_each, zero=Zero(stage=0), reduce_gradients=False)
    assert_found(at_once, "gradients that are not reduced", apart)
    for stage, lost in SENT:
        check = partial(train, drawn, zero=Zero(stage=stage), lost=lost)
        assert_found("rank 0, losses: ", f"a rank without {lost} in stage {stage}", check)
    for stage, message in UNSPLIT.items():
        results = assert_trains(ranks, programs.train, drawn, zero=Zero(stage=stage - 1))
        split = partial(assert_split, results, drawn[0], Zero(stage=stage))
        assert_found(f"rank 0 {message}", f"stage {stage - 1} for {stage}", split)


@pytest.mark.ranks(2, 4)
def test_your_own_training(ranks: Ranks) -> None:
    """With as many microbatches as steps, and with fewer."""
    for seed in range(10):
        sizes = {**A_PROBLEM, "microbatches": 1 + seed % 2, "seed": seed}
        assert_trains(ranks, programs.train_with_collectives, problem(degree=ranks.world_size, **sizes))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"stage": 4}, "the stages 0 to 3, got 4"),
        ({"stage": 0, "offload_optimizer": True}, "offload_optimizer needs stage 1 or more"),
        ({"stage": 2, "offload_parameters": True}, "offload_parameters needs stage 3, .* got 2"),
    ],
)
def test_what_zero_has_not_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Zero(**wrong)
