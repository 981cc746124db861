"""Experts spread over ranks compute what the dense layer does: output, all gradients, parameters after a step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor_autograd, reduce_scatter_tensor_autograd

from pytest_gpuperf import Context, Ranks
from suites.expert_parallel import programs
from suites.expert_parallel.reference import (
    CHOICES,
    HIDDEN,
    TOKENS,
    WIDTH,
    arguments,
    assert_dense,
    choices,
    fixed,
)
from suites.shared.step import once, second
from suites.shared.strategies import seeds, worlds


@pytest.mark.ranks(2, 4)
@given(
    data=st.data(),
    local=st.integers(1, 2),
    width=st.integers(1, WIDTH),
    hidden=st.integers(1, HIDDEN),
    # Room for one to all of a rank's tokens at each expert.
    capacity=st.integers(1, TOKENS),
    kind=st.sampled_from([("scores", torch.float64), ("scores", torch.float32), ("softmax", torch.float64)]),
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
    experts = local * world.world_size
    gate, dtype = kind
    given = arguments(
        tokens=data.draw(st.lists(st.integers(0, TOKENS), min_size=world.world_size, max_size=world.world_size)),
        experts=experts,
        width=width,
        hidden=hidden,
        k=data.draw(st.integers(1, min(CHOICES, experts))),
        capacity=capacity,
        gate=gate,
        dtype=dtype,
        seed=seed,
    )
    assert_dense(world.run(second, programs.train, **given), given)


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
def test_the_fixed_case_sends_everywhere_and_drops_some(ranks: Ranks) -> None:
    given = fixed(ranks)
    for x, _ in given["each"]:
        chosen, kept = choices(x @ given["weights"].gate.T, given["k"], given["capacity"])
        assert 0 < kept.sum() < chosen.sum()
        assert all(part.any() for part in kept.chunk(ranks.world_size, dim=1))
    assert_dense(ranks.run(once, programs.train, **given), given)


def rows_come_back_shifted(ctx: Context, parameters: nn.ParameterDict, rows: Any, per_expert: Any) -> torch.Tensor:
    return programs.dispatched(ctx, parameters, rows, per_expert).roll(1, 0)


def sent_to_the_next_rank(ctx: Context, parameters: nn.ParameterDict, rows: Any, per_expert: Any) -> torch.Tensor:
    local = len(parameters["first"])
    last = int(per_expert[-local:].sum())
    return programs.dispatched(ctx, parameters, rows.roll(last, 0), per_expert.roll(local)).roll(-last, 0)


def never_sent(ctx: Context, parameters: nn.ParameterDict, rows: Any, per_expert: Any) -> torch.Tensor:
    per_rank = per_expert.view(ctx.world_size, -1)
    parts = zip(rows.split(per_rank.sum(1).tolist()), per_rank.tolist(), strict=True)
    return torch.cat([programs.experts_forward(parameters, part, counts) for part, counts in parts])


def drops_nothing(*args: Any, capacity: int, **kwargs: Any) -> torch.Tensor:
    return programs.expert_parallel(*args, capacity=TOKENS, **kwargs)


def weighs_otherwise(*args: Any, gate: str, **kwargs: Any) -> torch.Tensor:
    return programs.expert_parallel(*args, gate="softmax", **kwargs)


def keeps_its_gradient_to_itself(ctx: Context, parameters: nn.ParameterDict) -> None:
    pass


BROKEN: list[tuple[dict[str, Callable[..., Any]], str]] = [
    ({"layer": functools.partial(programs.expert_parallel, dispatch=rows_come_back_shifted)}, "output"),
    ({"layer": functools.partial(programs.expert_parallel, dispatch=sent_to_the_next_rank)}, "output"),
    ({"layer": functools.partial(programs.expert_parallel, dispatch=never_sent)}, "output"),
    ({"layer": drops_nothing}, "output"),
    ({"layer": weighs_otherwise}, "output"),
    ({"reduce": keeps_its_gradient_to_itself}, "gate gradient"),
]
NAMES = ["rows come back shifted", "sent to the next rank", "never sent", "drops nothing", "other weights", "no reduce"]


@pytest.mark.deliberate_break
@pytest.mark.ranks(2)
@pytest.mark.parametrize(("broken", "wrong"), BROKEN, ids=NAMES)
def test_a_broken_layer_is_found(ranks: Ranks, broken: dict[str, Callable[..., Any]], wrong: str) -> None:
    given = fixed(ranks)
    got = ranks.run(once, programs.train, **given, **broken)
    with pytest.raises(AssertionError, match=f"^rank 0, {wrong}: "):
        assert_dense(got, given)


def gather_all(
    ctx: Context, parameters: nn.ParameterDict, x: torch.Tensor, *, k: int, capacity: int, gate: str
) -> torch.Tensor:
    """Another layer: every rank sends all tokens through its own experts, and the sum over the ranks comes back."""
    tokens = all_gather_tensor_autograd(x, 0, ctx.group)
    scores = tokens @ parameters["gate"].T
    ranked, by_score = scores.sort(dim=-1, descending=True, stable=True)
    weights = torch.zeros_like(scores).scatter(1, by_score[:, :k], programs.GATES[gate](ranked[:, :k]))
    hidden = torch.einsum("td,ehd->teh", tokens, parameters["first"]).relu()
    mine = weights.chunk(ctx.world_size, dim=1)[ctx.rank]
    output: torch.Tensor = reduce_scatter_tensor_autograd(
        torch.einsum("te,teh,edh->td", mine, hidden, parameters["second"]), "sum", 0, ctx.group
    )
    return output


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("gate", programs.GATES)
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
