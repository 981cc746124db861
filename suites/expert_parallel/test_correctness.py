"""Experts spread over ranks compute what the dense layer does: output, all gradients, parameters after a step."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor_autograd, reduce_scatter_tensor_autograd

from pytest_gpuperf import Context, Ranks
from suites.expert_parallel.programs import layer as programs
from suites.expert_parallel.programs.exchange import exchanging_layer
from suites.expert_parallel.reference import (
    CHOICES,
    HIDDEN,
    TOKENS,
    TOKENS_IN_BFLOAT16,
    WIDTH,
    Arguments,
    arguments,
    assert_dense,
    choices,
    dense_layer,
    fixed,
)
from suites.shared.comparison import assert_within
from suites.shared.experts import GATES
from suites.shared.step import each_step, once, second
from suites.shared.strategies import seeds, worlds


@pytest.mark.ranks(2, 4)
@given(
    data=st.data(),
    local=st.integers(1, 2),
    width=st.integers(1, WIDTH),
    hidden=st.integers(1, HIDDEN),
    # Room for one to all of a rank's tokens at each expert.
    capacity=st.integers(1, TOKENS),
    kind=st.sampled_from(
        [
            ("scores", torch.float64),
            ("scores", torch.float32),
            ("scores", torch.bfloat16),
            ("softmax", torch.float64),
        ]
    ),
    seed=seeds,
)
def test_expert_parallel(
    ranks: Ranks,
    data: st.DataObject,
    local: int,
    width: int,
    hidden: int,
    capacity: int,
    kind: tuple[str, torch.dtype],
    seed: int,
) -> None:
    world = data.draw(worlds(ranks))
    gate, dtype = kind
    if dtype == torch.bfloat16 and world.world_size > 2:
        dtype = torch.float32  # more tokens than bfloat16 adds exactly
    experts = local * world.world_size
    most = TOKENS_IN_BFLOAT16 if dtype == torch.bfloat16 else TOKENS
    tokens = st.lists(st.integers(0, most), min_size=world.world_size, max_size=world.world_size)
    k = data.draw(st.integers(1, min(CHOICES, experts)))
    sizes: dict[str, Any] = {"experts": experts, "width": width, "hidden": hidden, "k": k, "capacity": capacity}
    steps = [
        arguments(tokens=data.draw(tokens), gate=gate, dtype=dtype, seed=seed + step, **sizes) for step in range(2)
    ]
    assert_each_step(world, steps)


def assert_each_step(world: Ranks, steps: list[Arguments]) -> None:
    """Each step has weights, tokens and so a routing of its own."""
    first, *rest = steps
    later = [(given["weights"], given["each"]) for given in rest]
    results = world.run(each_step, programs.train, len(steps), **first, later=later)
    for number, arguments_of_step in enumerate(steps):
        assert_dense([of_rank[number] for of_rank in results], arguments_of_step)


@pytest.mark.ranks(2, 3)
def test_three_steps_of_changing_routing(ranks: Ranks) -> None:
    """Each step has other counts for each expert, and experts without a token; on two ranks the dtype is bfloat16."""
    kinds = {"dtype": torch.bfloat16, "tokens": [2, 1]} if ranks.world_size == 2 else {"tokens": [4, 0, 3]}
    assert_each_step(ranks, [fixed(ranks, seed=seed, **kinds) for seed in range(3)])


LARGE = 1024  # exp of it is infinite in float64, and of its negative 0


@pytest.mark.ranks(2, 4)
def test_scores_in_the_thousands(ranks: Ranks) -> None:
    """Softmax must subtract the largest score: all of a token's are about LARGE or its multiple, or all the negative.

    Their differences are those of the usual case, as are the probabilities. Of the results the input's gradient alone
    grows: it is of k scores' gradients, as off as at ROUNDED, times weights of up to LARGE.
    """
    given = fixed(ranks, gate="softmax")
    weights: programs.Weights = given["weights"]
    weights.gate[:, 0] = LARGE
    for x, _ in given["each"]:
        x[:, 0] = torch.tensor([1, -1, 2, -2])
    scores = torch.cat([x @ weights.gate.T for x, _ in given["each"]])
    assert scores.amax() > LARGE
    assert scores.amin() < -LARGE
    assert (scores.exp().isinf() | (scores.exp() == 0)).all()
    most = 2 * 32 * 2.0**-53 * given["k"] * LARGE * 5832
    assert_dense(ranks.run(second, programs.train, **given), given, most)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("exchange", [None, "padded", "exact"])
def test_a_gate_of_16_bits_is_computed_in_float32(ranks: Ranks, exchange: str | None) -> None:
    """A token's scores are large and near each other. Experts give whole numbers: the output is rounded, once."""
    layer = programs.expert_parallel
    if exchange is not None:
        layer = functools.partial(exchanging_layer, padded=exchange == "padded", chunks=1)
    given = fixed(ranks, gate="softmax", dtype=torch.bfloat16, k=3, capacity=TOKENS)
    gate: torch.Tensor = given["weights"].gate
    generator = torch.Generator().manual_seed(4)
    common, own = (torch.randn(number, WIDTH, generator=generator) for number in (1, len(gate)))
    gate.copy_(8 * common + own / 4)
    for rank, result in enumerate(ranks.run(once, programs.train, **given, layer=layer)):
        exact = dense_layer(given)[rank]["output"]
        # Half of the last of bfloat16's 8 bits; beside that, in float32, scores and experts' outputs of up to 64.
        bound = torch.ldexp(torch.ones_like(exact), exact.frexp().exponent - 9) + 64 * 64 * 2.0**-23
        assert result["output"].dtype == torch.bfloat16
        assert_within(result["output"], exact, bound, f"rank {rank}, output")


@pytest.mark.ranks(2)
def test_the_fixed_case_sends_everywhere_and_drops_some(ranks: Ranks) -> None:
    given = fixed(ranks)
    for x, _ in given["each"]:
        chosen, kept = choices(x @ given["weights"].gate.T, given["k"], given["capacity"])
        assert 0 < kept.sum() < chosen.sum()
        assert all(part.any() for part in kept.chunk(ranks.world_size, dim=1))
    assert_dense(ranks.run(once, programs.train, **given), given)


def gather_all(
    ctx: Context, parameters: nn.ParameterDict, x: torch.Tensor, *, k: int, capacity: int, gate: str
) -> torch.Tensor:
    """Another layer: every rank sends all tokens through its own experts, and the sum over the ranks comes back."""
    tokens = all_gather_tensor_autograd(x, 0, ctx.group)
    scores = tokens @ parameters["gate"].T
    ranked, by_score = scores.sort(dim=-1, descending=True, stable=True)
    weights = torch.zeros_like(scores).scatter(1, by_score[:, :k], GATES[gate](ranked[:, :k]))
    hidden = torch.einsum("td,ehd->teh", tokens, parameters["first"]).relu()
    mine = weights.chunk(ctx.world_size, dim=1)[ctx.rank]
    output: torch.Tensor = reduce_scatter_tensor_autograd(
        torch.einsum("te,teh,edh->td", mine, hidden, parameters["second"]), "sum", 0, ctx.group
    )
    return output


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("gate", GATES)
def test_your_own_layer(ranks: Ranks, gate: str) -> None:
    given = fixed(ranks, gate=gate, capacity=TOKENS)  # room for all: this one drops nothing
    assert_dense(ranks.run(once, programs.train, **given, layer=gather_all), given)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"experts": 3}, "3 experts cannot be split evenly over 2 ranks"),
        ({"k": 5}, "a token goes to 1 to 4 of 4 experts, got k = 5"),
        ({"k": 0}, "a token goes to 1 to 4 of 4 experts, got k = 0"),
        ({"capacity": 0}, "an expert's capacity must be 1 or more, got 0"),
    ],
)
def test_what_makes_no_sense_is_refused(ranks: Ranks, wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ranks.run(once, programs.train, **fixed(ranks, **wrong))
