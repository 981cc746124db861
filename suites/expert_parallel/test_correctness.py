"""Experts spread over ranks compute what the dense layer does: output, all gradients, parameters after a step.

The dense layer sends every token through every expert on one device, and multiplies by a weight that is zero
where the token did not go.
"""

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
from suites.data import integers, once
from suites.expert_parallel import programs
from suites.strategies import seeds, worlds

# Inputs, weights and output gradients of at most 3 are whole numbers, and with the gate "scores" so is everything
# else. Of D = 3 features, H = 4 hidden ones, E = 8 experts, k = 3 choices and 4 ranks of 4 tokens, with ReLU
# between: a score is at most 27, a hidden feature 27, an expert's output 324, the layer's 3 * 27 * 324 = 26244.
# The gradient of a score is at most 3 * 3 * 324 = 2916; that of a hidden feature 3 * 27 * 3 * 3 = 729. A parameter's
# gradient adds one of these times 27 or less for each of 16 tokens: below 2**21, exact in float32 (2**24) too.
EXACT = 0.0

# With softmax the gate's weights are rounded, u = 2**-53, by at most 8u of each: exp by 1 ulp = 2u (CUDA's and SLEEF's
# bound), in the divisor too, the sum of 3 by 2u, the division by u; differences of whole scores are exact. The gradient
# of a score is p (g - sum of p g) with whole |g| <= 2916: off by at most 16u of 5832. Largest is the gate's gradient,
# of 16 tokens times 3: 16 * 3 * 5832, off by 16u for its terms and 16u for their sum (Higham, section 4.2). Twice,
# since the reference rounds as well; everything else is smaller.
ROUNDED = 2 * 32 * 2.0**-53 * 16 * 3 * 5832

TOLERANCES = {"scores": EXACT, "softmax": ROUNDED}

WIDTH, HIDDEN, CHOICES, TOKENS = 3, 4, 3, 4  # at most; the bounds above are for these

Arguments = dict[str, Any]
Results = list[dict[str, torch.Tensor]]


def arguments(
    *,
    tokens: list[int],
    experts: int,
    width: int,
    hidden: int,
    k: int,
    capacity: int,
    gate: str,
    dtype: torch.dtype,
    seed: int,
) -> Arguments:
    """What ``programs.train`` takes; a number of tokens for each rank."""

    def drawn(index: int, *shape: int) -> torch.Tensor:
        return integers(shape, dtype, seed=seed * 64 + index, low=-3, high=3)

    weights = programs.Weights(
        gate=drawn(0, experts, width), first=drawn(1, experts, hidden, width), second=drawn(2, experts, width, hidden)
    )
    each = [(drawn(8 + 2 * rank, n, width), drawn(9 + 2 * rank, n, width)) for rank, n in enumerate(tokens)]
    return {"weights": weights, "each": each, "k": k, "capacity": capacity, "gate": gate}


def choices(scores: torch.Tensor, k: int, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For one rank's tokens and all experts, 1 where the token chose the expert; and 1 where there was room."""
    tokens, experts = scores.shape
    ranked = [sorted(range(experts), key=lambda expert: (-row[expert], expert))[:k] for row in scores.tolist()]
    chosen, kept = torch.zeros_like(scores), torch.zeros_like(scores)
    room = [capacity] * experts
    for choice in range(k):
        for token in range(tokens):
            expert = ranked[token][choice]
            chosen[token, expert] = 1
            if room[expert]:
                room[expert] -= 1
                kept[token, expert] = 1
    return chosen, kept


def reference(given: Arguments) -> Results:
    """The dense layer over all ranks' tokens, and of its results what each rank should hold."""
    weights: programs.Weights = given["weights"]
    tokens = [len(x) for x, _ in given["each"]]
    x, grad = (torch.cat(parts).double() for parts in zip(*given["each"], strict=True))
    leaves = {"input": x, "gate": weights.gate, "first": weights.first, "second": weights.second}
    leaves = {name: value.double().requires_grad_() for name, value in leaves.items()}

    scores = leaves["input"] @ leaves["gate"].T
    masks = [choices(part, given["k"], given["capacity"]) for part in scores.detach().split(tokens)]
    chosen, kept = (torch.cat(parts) for parts in zip(*masks, strict=True))
    if given["gate"] == "softmax":
        powers = (scores - scores.detach().masked_fill(chosen == 0, -torch.inf).amax(1, keepdim=True)).exp() * chosen
        weight = powers / powers.sum(1, keepdim=True)
    else:
        weight = scores
    before = torch.einsum("td,ehd->teh", leaves["input"], leaves["first"])
    hidden = before * (before > 0)
    output = torch.einsum("te,teh,edh->td", weight * kept, hidden, leaves["second"])

    gradients = dict(zip(leaves, torch.autograd.grad(output, list(leaves.values()), grad), strict=True))
    world_size = len(tokens)
    whole: dict[str, tuple[torch.Tensor, ...]] = {
        "output": output.detach().split(tokens),
        "input gradient": gradients["input"].split(tokens),
    }
    for name in ("gate", "first", "second"):
        gradient, after = gradients[name], leaves[name].detach() - programs.LEARNING_RATE * gradients[name]
        for suffix, value in (("gradient", gradient), ("after the step", after)):
            whole[f"{name} {suffix}"] = (value,) * world_size if name == "gate" else value.chunk(world_size)
    return [{name: parts[rank] for name, parts in whole.items()} for rank in range(world_size)]


def assert_same(got: Results, given: Arguments, atol: float | None = None) -> None:
    atol = TOLERANCES[given["gate"]] if atol is None else atol
    for rank, (have, want) in enumerate(zip(got, reference(given), strict=True)):
        assert set(have) == set(want)
        for name, tensor in want.items():
            assert have[name].dtype == given["weights"].gate.dtype
            assert_close(have[name].double(), tensor, atol, f"rank {rank}, {name}")


def assert_close(got: torch.Tensor, expected: torch.Tensor, atol: float, where: str) -> None:
    if not torch.equal(got, expected):  # 20 times as quick, and most are
        torch.testing.assert_close(got, expected, rtol=0, atol=atol, msg=lambda text: f"{where}: {text}")


def last_of_two(ctx: Context, **kwargs: Any) -> dict[str, torch.Tensor]:
    """The second step's results: nothing of the first's may be left in them."""
    step = programs.train(ctx, **kwargs)
    step()
    return step()


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
    assert_same(world.run(last_of_two, **given), given)


def fixed(ranks: Ranks, **changes: Any) -> Arguments:
    """A case in which every rank has tokens for every other, and drops some."""
    usual: Arguments = {
        "tokens": [TOKENS] * ranks.world_size,
        "experts": 2 * ranks.world_size,
        "width": WIDTH,
        "hidden": HIDDEN,
    }
    rest = {"k": 2, "capacity": 1, "gate": "scores", "dtype": torch.float64, "seed": 1}
    return arguments(**(usual | rest | changes))


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
    assert_same(ranks.run(last_of_two, **given), given, most)


@pytest.mark.ranks(2)
def test_the_fixed_case_sends_everywhere_and_drops_some(ranks: Ranks) -> None:
    given = fixed(ranks)
    for x, _ in given["each"]:
        chosen, kept = choices(x @ given["weights"].gate.T, given["k"], given["capacity"])
        assert 0 < kept.sum() < chosen.sum()
        assert all(part.any() for part in kept.chunk(ranks.world_size, dim=1))
    assert_same(ranks.run(once, programs.train, **given), given)


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


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("broken", "wrong"), BROKEN, ids=NAMES)
def test_a_broken_layer_is_found(ranks: Ranks, broken: dict[str, Callable[..., Any]], wrong: str) -> None:
    given = fixed(ranks)
    got = ranks.run(once, programs.train, **given, **broken)
    with pytest.raises(AssertionError, match=f"^rank 0, {wrong}: "):
        assert_same(got, given)


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
    assert_same(ranks.run(once, programs.train, **given, layer=gather_all), given)


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
