"""A split block's step of training that is captured as a CUDA graph, and replayed, trains as the whole block does."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call

from pytest_gpuperf import Context, Ranks
from suites.shared.comparison import assert_same
from suites.shared.sharding import per_rank
from suites.shared.step import WARM_UPS, Tensors
from suites.tensor_parallel.programs import graphs
from suites.tensor_parallel.programs.block import BlockShape, whole

SHAPE = BlockShape(sequences=2, length=5, width=24, heads=12, hidden=36, dtype=torch.float64)
STEPS = 3
# Ranks add in another order: some 100 roundings of 2**-53 of numbers below 100, in each of the steps.
ROUNDING = 1e-11

COLUMNS = ("attention.query", "attention.key", "attention.value", "up")
ROWS = ("attention.output", "down")
DIMS = {
    f"{name}.weight{of}": dim for dim, names in enumerate((COLUMNS, ROWS)) for name in names for of in ("", " gradient")
}


def alone(ctx: Context) -> list[Tensors]:
    """What the whole block leaves in each step: SGD with momentum by its formula, without an optimizer."""
    block = whole(ctx, SHAPE)
    parameters = {name: value.detach() for name, value in block.named_parameters()}
    momenta = {name: torch.zeros_like(value) for name, value in parameters.items()}
    results = []
    for number in range(STEPS):
        x, grad = graphs.batch(ctx, SHAPE, number)
        leaves = {name: value.requires_grad_() for name, value in {"input": x, **parameters}.items()}
        output = functional_call(block, {name: leaves[name] for name in parameters}, (leaves["input"],))
        found = torch.autograd.grad(output, list(leaves.values()), grad)
        gradients = dict(zip(leaves, found, strict=True))
        momenta = {name: graphs.MOMENTUM * momenta[name] + gradients[name] for name in parameters}
        parameters = {name: value.detach() - graphs.RATE * momenta[name] for name, value in parameters.items()}
        named = {"output": output.detach()} | {f"{name} gradient": value for name, value in gradients.items()}
        results.append(named | parameters)
    return results


def taken(ranks: Ranks, *, graph: bool) -> set[int]:
    """Compares each step; returns how often Python went through one."""
    told = ranks.run(graphs.train, shape=SHAPE, steps=STEPS, graph=graph)
    expected, *_ = ranks.run(alone)
    for got, want in zip(zip(*(results for results, _ in told), strict=True), expected, strict=True):
        assert_same(got, per_rank(want, ranks.world_size, DIMS), ROUNDING)
    return {count for _, count in told}


@pytest.mark.ranks(2, 3, 4)
def test_the_step_as_it_is(ranks: Ranks) -> None:
    assert taken(ranks, graph=False) == {WARM_UPS + STEPS}


@pytest.mark.ranks(2, 4, device="cuda")
def test_the_step_as_a_graph(ranks: Ranks) -> None:
    """Every step copies another input and another output gradient; Python goes through none of them any more."""
    assert taken(ranks, graph=True) == {WARM_UPS + 1}
