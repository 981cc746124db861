"""What ranks are given, and the dense layer that they should compute.

It sends every token through every expert on one device, and multiplies by a weight that is zero where the token did
not go.
"""

from __future__ import annotations

from typing import Any

import torch

from pytest_gpuperf import Context, Ranks
from suites.expert_parallel.programs import layer as programs
from suites.expert_parallel.programs import racing
from suites.shared.comparison import Results, assert_same
from suites.shared.inputs import integers
from suites.shared.step import Tensors, excerpt, gradient_of

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

# Tokens of float64 are up to 2**9 times as large, and a parameter's gradient, which has three of them as factors, below
# 2**48: in float32 it would be rounded. bfloat16 holds 256: with numbers of at most 1, and 4 tokens of all ranks, a
# hidden feature and a score are at most 3, an expert's output 12, the layer's 3 * 3 * 12 = 108, the gradient of a score
# 3 * 12 = 36, and a parameter's 4 * 36 = 144.
LARGEST_TOKEN = {torch.float64: 3 * 2**9, torch.float32: 3, torch.bfloat16: 1}
TOKENS_IN_BFLOAT16 = 2
"""The most tokens that a rank has in bfloat16, if there are two ranks."""

TOLERANCES = {"scores": EXACT, "softmax": ROUNDED}

WIDTH, HIDDEN, CHOICES, TOKENS = 3, 4, 3, 4  # at most; the bounds above are for these

Arguments = dict[str, Any]


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

    def drawn(index: int, *shape: int, largest: int = 1 if dtype == torch.bfloat16 else 3) -> torch.Tensor:
        return integers(shape, dtype, seed=seed * 64 + index, low=-largest, high=largest)

    weights = programs.Weights(
        gate=drawn(0, experts, width), first=drawn(1, experts, hidden, width), second=drawn(2, experts, width, hidden)
    )
    token = LARGEST_TOKEN[dtype] if gate == "scores" else 3
    each = [
        (drawn(8 + 2 * rank, n, width, largest=token), drawn(9 + 2 * rank, n, width)) for rank, n in enumerate(tokens)
    ]
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


def dense_layer(given: Arguments) -> list[Tensors]:
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


def assert_dense(got: Results, given: Arguments, atol: float | None = None) -> None:
    """Each rank has its part of what the dense layer computes in float64, in its own dtype."""
    for result in got:
        assert {tensor.dtype for tensor in result.values()} == {given["weights"].gate.dtype}
    double = [{name: tensor.double() for name, tensor in result.items()} for result in got]
    assert_same(double, dense_layer(given), TOLERANCES[given["gate"]] if atol is None else atol, ordered=False)


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


def kept_assignments(chosen: torch.Tensor, experts: int, capacity: int) -> torch.Tensor:
    """Which assignments (T x k) there is room for; first choices come first, then the order of the tokens."""
    in_turn = chosen.T.flatten()
    taken = torch.nn.functional.one_hot(in_turn, experts).cumsum(0).gather(1, in_turn[:, None])
    return (taken <= capacity).view(chosen.shape[::-1]).T


def one_device(ctx: Context, sizes: racing.Sizes, routing: racing.Routing, seed: int, step: int) -> Tensors:
    """What this rank should return in a step, from 1 on: all experts on its device, and all ranks' tokens in turn."""
    experts = [racing.expert(ctx, sizes, number, seed) for number in range(sizes.experts)]
    for matrix in (matrix for one in experts for matrix in one.values()):
        matrix.requires_grad_()
    found: Tensors = {}
    for rank in range(ctx.world_size):
        batch = racing.batch_of(ctx, sizes, routing, rank, (step - 1) % racing.BATCHES)
        kept = kept_assignments(batch.chosen.cpu(), sizes.experts, sizes.capacity).to(ctx.device)
        x, weights = (tensor.requires_grad_() for tensor in (batch.x, batch.weights))
        output = torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))
        for number, one in enumerate(experts):
            token, choice = ((batch.chosen == number) & kept).nonzero(as_tuple=True)
            made = (x[token] @ one["first"].T).relu() @ one["second"].T
            output = output.index_add(0, token, (made * weights[token, choice, None]).to(output.dtype))
        output.backward(batch.grad.to(output.dtype))
        if rank == ctx.rank:
            found = {"output": output, "input gradient": gradient_of(x), "weights gradient": gradient_of(weights)}
    local = sizes.experts // ctx.world_size
    own = experts[ctx.rank * local : (ctx.rank + 1) * local]
    for name in ("first", "second"):
        found[f"{name} gradient"] = torch.stack([gradient_of(one[name]) for one in own])
    return excerpt(found)
