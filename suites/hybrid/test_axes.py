"""Data parallelism beside experts, context or sequence gives what one device does with all tokens, exactly.

Tokens are odd whole numbers of 9 bits, weights and output gradients small ones: with at most three tokens as factors
sums stay below 2^53, and need more than a float32 has.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from pytest_gpuperf import Ranks
from suites.hybrid.programs import axes
from suites.hybrid.programs.axes import EXPERTS, HIDDEN, SPLIT, TOKENS, WIDTH, Tokens
from suites.shared.comparison import assert_close
from suites.shared.inputs import integers
from suites.shared.step import Tensors

DTYPE = torch.float64
STEPS = 3
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "expert": {"dense": (WIDTH, WIDTH), "experts": (EXPERTS, HIDDEN, WIDTH)},
    "context": {"query": (WIDTH, WIDTH), "key": (WIDTH, WIDTH), "value": (HIDDEN, WIDTH)},
    "sequence": {"scale": (WIDTH,), "up": (HIDDEN, WIDTH), "down": (HIDDEN, HIDDEN)},
}


def weights_of(axis: str) -> Tensors:
    return {
        name: integers(shape, DTYPE, seed=seed, low=-3, high=3)
        for seed, (name, shape) in enumerate(SHAPES[axis].items())
    }


def batch_of(step: int, ranks: int) -> Tokens:
    def drawn(kind: int, rank: int, shape: tuple[int, ...], largest: int) -> torch.Tensor:
        return integers(shape, DTYPE, seed=1000 * step + 100 * kind + rank, low=-largest, high=largest)

    generator = torch.Generator().manual_seed(step)
    return Tokens(
        x=[2 * drawn(0, rank, (TOKENS, WIDTH), 255) + 1 for rank in range(ranks)],
        chosen=[torch.randint(EXPERTS, (TOKENS,), generator=generator) for _ in range(ranks)],
        grad=[drawn(1, rank, (TOKENS, HIDDEN), 3) for rank in range(ranks)],
    )


def whole_layer(axis: str, weights: Tensors, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """One group's tokens, all on one device."""
    if axis == "expert":
        every = torch.einsum("td,ehd->teh", functional.linear(x, weights["dense"]), weights["experts"])
        return every[torch.arange(len(x)), chosen]
    if axis == "context":
        scores = functional.linear(x, weights["query"]) @ functional.linear(x, weights["key"]).T
        return torch.tril(scores) @ functional.linear(x, weights["value"])
    hidden = functional.linear(x * weights["scale"], weights["up"]).clamp(min=0)
    return functional.linear(hidden, weights["down"])


def whole_step(axis: str, weights: Tensors, batch: Tokens, degree: int) -> tuple[Tensors, list[Tensors]]:
    """The gradients of all parameters, and each rank's output and gradient of its tokens."""
    leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
    tokens = [x.clone().requires_grad_() for x in batch.x]
    of_ranks: list[Tensors] = []
    for first in range(0, len(tokens), degree):
        of_group = slice(first, first + degree)
        output = whole_layer(axis, leaves, torch.cat(tokens[of_group]), torch.cat(batch.chosen[of_group]))
        output.backward(torch.cat(batch.grad[of_group]))
        of_ranks += [{"output": own.detach()} for own in output.chunk(degree)]
    for rank, x in enumerate(tokens):
        assert x.grad is not None
        of_ranks[rank]["input gradient"] = x.grad
    gradients = {}
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        gradients[name] = leaf.grad
    return gradients, of_ranks


@pytest.mark.ranks(4)
@pytest.mark.parametrize("degree", [2, 4])
@pytest.mark.parametrize("axis", SHAPES)
def test_as_one_device(ranks: Ranks, axis: str, degree: int) -> None:
    check(ranks, axis, degree)


@pytest.mark.ranks(8)
@pytest.mark.parametrize("axis", SHAPES)
def test_more_copies_than_parts(ranks: Ranks, axis: str) -> None:
    check(ranks, axis, 2)


def check(ranks: Ranks, axis: str, degree: int) -> None:
    """Three steps, each with tokens of its own, of outputs, gradients and parameters."""
    weights = weights_of(axis)
    batches = [batch_of(step, ranks.world_size) for step in range(STEPS)]
    got = ranks.run(axes.train, axis=axis, degree=degree, weights=weights, batches=batches)
    for step, batch in enumerate(batches):
        gradients, of_ranks = whole_step(axis, weights, batch, degree)
        weights = {name: value - gradients[name].sign() for name, value in weights.items()}
        for rank, results in enumerate(got):
            expected = of_ranks[rank]
            for name, value in weights.items():
                dim = SPLIT[axis].get(name)
                own = {f"{name} gradient": gradients[name], name: value}
                expected |= {
                    told: whole if dim is None else whole.chunk(degree, dim)[rank % degree]
                    for told, whole in own.items()
                }
            assert sorted(results[step]) == sorted(expected)
            for name, tensor in expected.items():
                assert_close(results[step][name], tensor, f"{axis}, rank {rank}, step {step}, {name}")
            assert max(float(tensor.abs().max()) for tensor in expected.values()) < 2**53
