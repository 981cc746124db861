"""A block whose norm and dropout see a part of the sequence computes what the whole block does, and trains as it does.

Everything is float64. The norms are not exact; ``tolerance`` bounds what their rounding may do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from pytest_gpuperf import Context, Ranks
from suites.sequence_parallel.programs import block as programs
from suites.sequence_parallel.programs.block import EPS, TOKENS, Block, Norm, tokens_of
from suites.shared.chances import assert_agree, assert_independent
from suites.shared.comparison import Results, assert_close, assert_same
from suites.shared.inputs import Given, integers
from suites.shared.references import by_autograd
from suites.shared.sharding import per_rank
from suites.shared.step import Tensors, each_step, once
from suites.shared.strategies import seeds
from suites.shared.traffic import Traffic

DTYPE = torch.float64
U = 2.0**-53  # its unit roundoff

# DTensor plans each operation anew for each shape: only batch and tokens are drawn. 2, 3 and 4 ranks share 12 features.
WIDTH, HIDDEN = 8, 12
RATE = 0.5

norms: st.SearchStrategy[Norm] = st.sampled_from(["layer", "rms"])


def drawn(norm: Norm, batch: int, tokens: int, seed: int) -> Given:
    """A block, what it is given, and the gradient of its output.

    Inputs are quarters between -1 and 1. Each token has both of these, so that its variance and its mean square are
    2 / W at least: norms divide by no small number.
    """
    x = integers((batch, tokens, WIDTH), DTYPE, seed=seed * 8, low=-4, high=4) / 4
    x[..., 0], x[..., 1] = 1, -1
    parameters = {"norm.weight": integers((WIDTH,), DTYPE, seed=seed * 8 + 1, low=-4, high=4) / 4}
    if norm == "layer":
        parameters["norm.bias"] = integers((WIDTH,), DTYPE, seed=seed * 8 + 2, low=-4, high=4) / 4
    # So small that no row and no column sums up to more than 1.
    parameters["up.weight"] = integers((HIDDEN, WIDTH), DTYPE, seed=seed * 8 + 3, low=-4, high=4) / (4 * HIDDEN)
    parameters["down.weight"] = integers((WIDTH, HIDDEN), DTYPE, seed=seed * 8 + 4, low=-4, high=4) / (4 * HIDDEN)
    grad = integers((batch, tokens, WIDTH), DTYPE, seed=seed * 8 + 5, low=-4, high=4) / 4
    return Given(parameters, x, grad)


def whole_block(
    norm: Norm, given: Given, kept: torch.Tensor | float = 1.0, p: float = 0.0, max_norm: float = math.inf
) -> Tensors:
    """Output, clipped gradients and trained parameters of the whole block, whose dropout keeps so much."""

    def block(leaves: Tensors) -> torch.Tensor:
        x = leaves["input"]
        centred = x - x.mean(-1, keepdim=True) if norm == "layer" else x
        normal = centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt()
        scaled = normal * leaves["norm.weight"] + leaves.get("norm.bias", 0)
        return x + (scaled @ leaves["up.weight"].T).tanh() @ leaves["down.weight"].T * kept / (1 - p)

    whole = by_autograd(block, {"input": given.x, **given.parameters}, given.grad)
    gradients = {name: whole.pop(f"{name} gradient") for name in given.parameters}
    total = torch.cat([value.flatten() for value in gradients.values()]).square().sum().sqrt()
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    whole["norm"] = total
    for name, value in given.parameters.items():
        whole |= {f"{name} gradient": gradients[name] * factor, name: value - RATE * gradients[name] * factor}
    return whole


def tolerances(tokens: int) -> dict[str, float]:
    """How far rounding may take activations and parameters; ``tokens`` counts those of the whole batch.

    To first order, in units of u; a computed sum of n products is off by at most n * u of the sum of their magnitudes
    (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).

    - A token's mean is off by W, and its variance, as the mean of the squares less the square of the mean, by 2 W. The
      variance is at least 2/W = 1/4, so the norm's divisor is at least 1/2, and off by 4 (W + 2) of itself. A normal
      value is at most sqrt(W).
    - Scaled ones are at most Y = sqrt(W) + 1. Neither matrix makes errors larger, nor does tanh: each layer adds a sum.
    - Backward, gradients are at most 1 until they meet the norm, and off by what tanh's slope is, twice the forward's.
      The norm's gradient is (g - mean(g) - n * mean(g * n)) / divisor, which is at most 2 (2 + sqrt(W)) and multiplies
      the errors in g by that, those in n by 2 (1 + sqrt(W)).
    - A parameter's gradient is a sum over all tokens, of products with at most Y.

    All of it twice, since the reference rounds too.
    """
    root = math.sqrt(WIDTH)
    largest = root + 1
    normal = 2 * (WIDTH + 1) + 4 * root * (WIDTH + 2)
    forward = normal + (WIDTH + 2) * largest + HIDDEN + 8
    behind_norm = 2 * forward + WIDTH + HIDDEN + 4
    backward = 2 * (2 + root) * (behind_norm + 6 * WIDTH + 8) + 2 * (1 + root) * normal
    parameter = tokens * (largest * behind_norm + forward) + tokens**2 * largest
    return {"activation": 2 * backward * U, "parameter": 2 * parameter * U}


# The dimension along which ranks share each of the block's tensors; they have all of the others.
SHARED = {"output": TOKENS, "input gradient": TOKENS} | {
    f"{name}{of}": dim for name, dim in {"up.weight": 0, "down.weight": 1}.items() for of in ("", " gradient")
}


def assert_block(got: Results, given: Given, norm: Norm, **how: Any) -> None:
    """Each rank has its tokens' output and gradient, its shard of the matrices, and all of the norm's parameters."""
    whole = whole_block(norm, given, **how)
    tolerance = tolerances(given.x.shape[0] * given.x.shape[TOKENS])
    clipped = how.get("max_norm", math.inf) < math.inf
    # The norm of n gradients is off by sqrt(n) times what each may be, and by n u of itself in computing it.
    elements = sum(value.numel() for value in given.parameters.values())
    tolerance["norm"] = math.sqrt(elements) * tolerance["parameter"] + 2 * (elements + 8) * float(whole["norm"]) * U
    if clipped:  # a gradient, at most 1 then, is off by as much again as the norm that it is divided by
        assert whole["norm"] >= 1
        tolerance["parameter"] += tolerance["norm"]
    if "p" in how:  # what is behind the dropout is scaled up, and so is what its rounding does
        tolerance = {name: value / (1 - how["p"]) for name, value in tolerance.items()}
    kinds = {"output": "activation", "input gradient": "activation", "norm": "norm"}
    assert_same(
        got,
        per_rank(whole, len(got), SHARED),
        lambda name: tolerance[kinds.get(name, "parameter")],
        ordered=False,
    )


def check_block(ranks: Ranks, norm: Norm, given: list[Given], **how: Any) -> None:
    """Every step is that of the whole block."""
    max_norm = how.get("max_norm", math.inf)
    results = ranks.run(each_step, programs.train, len(given), norm=norm, given=given, rate=RATE, **how)
    for now, got in zip(given, zip(*results, strict=True), strict=True):
        assert_block(got, now, norm, max_norm=max_norm)


def steps(norm: Norm, batch: int, tokens: int, seed: int) -> list[Given]:
    """Two with other inputs and other weights."""
    return [drawn(norm, batch, tokens, seed + number) for number in range(2)]


@pytest.mark.ranks(2)
@given(norm=norms, shape=st.sampled_from([(1, 4), (2, 2)]), seed=seeds)
def test_block(ranks: Ranks, norm: Norm, shape: tuple[int, int], seed: int) -> None:
    check_block(ranks, norm, steps(norm, *shape, seed))


@pytest.fixture
def clipped_sums(request: pytest.FixtureRequest, ranks: Ranks) -> None:
    """A test that clips them is expected to fail if this torch leaves them as they are."""
    if not all(ranks.run(programs.clips_sums)):
        reason = f"clip_grad_norm_ of torch {torch.__version__} leaves gradients that are yet to be summed as they are"
        request.applymarker(pytest.mark.xfail(reason=reason, raises=AssertionError, strict=True))


@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.usefixtures("clipped_sums")
def test_block_of_more_ranks(ranks: Ranks, norm: Norm) -> None:
    check_block(ranks, norm, steps(norm, 2, 2 * ranks.world_size, 1), max_norm=1.0)


@pytest.mark.ranks(2)
def test_long_sequence(ranks: Ranks) -> None:
    """70 000 numbers: what is sent in pieces has many."""
    check_block(ranks, "layer", [drawn("layer", 1, 8752, 1)])


P = 0.75


@pytest.mark.ranks(2, 3)
def test_block_with_dropout(ranks: Ranks) -> None:
    """What is behind the shortcut is dropped, on each rank in other places; the rest is as if it had been so."""
    given = steps("rms", 4, 8 * ranks.world_size, 1)
    results = ranks.run(each_step, programs.train, len(given), norm="rms", given=given, rate=RATE, p=P)
    masks: Tensors = {}
    for number, (now, got) in enumerate(zip(given, zip(*results, strict=True), strict=True), start=1):
        mine = tokens_of(now.x, len(got))
        kept = [result["output"] != x for result, x in zip(got, mine, strict=True)]
        assert_block(got, now, "rms", kept=torch.cat(kept, TOKENS), p=P)
        masks |= {f"rank {rank} in step {number}": mask for rank, mask in enumerate(kept)}
    assert_independent(masks, P)


def reduces_all_tokens(block: Block, mesh: DeviceMesh) -> Block:
    """Someone's own: an all-reduce gives each rank all tokens, of which it keeps its own. Right, but not cheap."""
    plan: dict[str, ParallelStyle] = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(TOKENS)),
        "down": RowwiseParallel(use_local_output=False),
        "dropout": SequenceParallel(use_local_output=True),
    }
    parallelize_module(block, mesh, plan)
    return block


@pytest.mark.ranks(2, 4)
def test_your_own_plan(ranks: Ranks) -> None:
    check_block(ranks, "layer", [drawn("layer", 2, ranks.world_size, 1)], parallel=reduces_all_tokens)


def collectives(
    ranks: Ranks, parallel: Callable[[Block, DeviceMesh], Block], tokens: int
) -> list[tuple[dict[str, int], int]]:
    """What every rank's block issues and sends, forward and backward; the ranks must agree."""
    given = drawn("layer", 2, tokens, 1)
    first, *others = ranks.run(
        programs.collectives, norm="layer", parameters=given.parameters, x=given.x, grad=given.grad, parallel=parallel
    )
    assert all(other == first for other in others)
    return first


@pytest.mark.ranks(2, 4)
def test_all_gather_and_reduce_scatter_send_what_the_all_reduce_did(ranks: Ranks) -> None:
    degree = ranks.world_size
    split = collectives(ranks, programs.sequence_parallel, tokens=2)
    whole = collectives(ranks, programs.tensor_parallel, tokens=2 * degree)
    # Of B = 2 sequences of 2 R tokens; Korthikanti et al., section 4.2.2: the same bandwidth.
    sent = 2 * (degree - 1) / degree * (2 * 2 * degree) * WIDTH * DTYPE.itemsize
    assert split == [({"all_gather": 1, "reduce_scatter": 1}, sent)] * 2
    assert whole == [({"all_reduce": 1}, sent)] * 2


def sent_to_split(ctx: Context, *, parallel: Callable[[Block, DeviceMesh], Block]) -> list[str]:
    """The collectives that split a block."""
    block = Block("layer", WIDTH, 2 * ctx.world_size, p=0.0, dtype=DTYPE, device=ctx.device)
    with Traffic() as traffic:
        parallel(block, ctx.mesh((ctx.world_size,)))
    return [call.name for call in traffic.calls]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("parallel", [programs.sequence_parallel, programs.tensor_parallel])
def test_parameters_that_all_ranks_have_are_not_sent(
    ranks: Ranks, parallel: Callable[[Block, DeviceMesh], Block]
) -> None:
    assert ranks.run(sent_to_split, parallel=parallel) == [[]] * ranks.world_size


def assert_drops(got: list[list[Tensors]], *, x: torch.Tensor, grad: torch.Tensor, p: float) -> None:
    """Each rank drops places of its own in each step, a share p of them, and scales up the others and their gradients.

    Args:
        got: what each rank's steps returned.
        x: the input of all ranks.
        grad: the gradient of their output.
        p: how likely a place is to be dropped.
    """
    kept: Tensors = {}
    for rank, (steps, mine, gradient) in enumerate(
        zip(got, tokens_of(x, len(got)), tokens_of(grad, len(got)), strict=True)
    ):
        for number, result in enumerate(steps, start=1):
            mask = result["output"] != 0
            scale = mask.to(DTYPE) / (1 - p if p < 1 else 1)
            for name, whole in {"output": mine, "input gradient": gradient}.items():
                # 1 - p, its reciprocal and the product are rounded, here and there: 6 u of the value.
                assert_close(result[name], whole * scale, f"rank {rank}, step {number}, {name}", rtol=6 * U)
            kept[f"rank {rank} in step {number}"] = mask
    # Within a mask first: all else is said of places that are independent of one another.
    for where, mask in kept.items():
        assert_agree(f"neighbouring features of {where}", mask[..., ::2], mask[..., 1::2], p)
        assert_agree(f"neighbouring tokens of {where}", mask[:, ::2], mask[:, 1::2], p)
    assert_independent(kept, p)


def places(ranks: Ranks) -> Tensors:
    """64 tokens of a rank, 16 wide, and gradients; no zeros, which look like dropped ones."""
    shape = (1, 64 * ranks.world_size, 16)
    return {name: integers(shape, DTYPE, seed=seed, low=1) for seed, name in enumerate(("x", "grad"))}


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("p", [0.0, 0.1, 0.75, 1.0])
def test_dropout(ranks: Ranks, p: float) -> None:
    inputs = places(ranks)
    got = ranks.run(each_step, programs.dropout, 2, p=p, **inputs)
    assert_drops(got, p=p, **inputs)


@pytest.mark.ranks(2, 4)
def test_a_sequence_that_does_not_divide_is_refused(ranks: Ranks) -> None:
    degree = ranks.world_size
    given = [drawn("layer", 1, 2 * degree - 1, 1)]
    message = f"a sequence of {2 * degree - 1} tokens cannot be split over {degree} ranks: pad it to a multiple"
    with pytest.raises(ValueError, match=f"^{message}"):
        ranks.run(once, programs.train, norm="layer", given=given, rate=RATE)
