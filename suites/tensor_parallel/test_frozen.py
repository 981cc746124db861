"""What is frozen when a model is split stays frozen, whatever splits it, and the rest trains as on one device."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from pytest_gpuperf import Ranks
from suites.shared.comparison import assert_close
from suites.shared.inputs import integers
from suites.shared.sharding import per_rank
from suites.shared.step import Tensors
from suites.tensor_parallel.programs.frozen import TokensAndGrad, partly_frozen
from suites.tensor_parallel.reference import DTYPE, linear

SPLIT = {"by_words.weight": 0, "by_features.weight": 1, "first.weight": 0, "first.bias": 0, "second.weight": 1}
TOKENS, WIDTH = 5, 6  # of features, each rank has some


def drawn(degree: int) -> Tensors:
    """Small whole numbers; the bias that is added by all ranks together has whole shares."""
    shapes = {
        "by_words.weight": (2 * degree, WIDTH),
        "by_features.weight": (2 * degree, WIDTH),
        "first.weight": (2 * degree, WIDTH),
        "first.bias": (2 * degree,),
        "second.weight": (WIDTH, 2 * degree),
        "second.bias": (WIDTH,),
    }
    parameters = {
        name: integers(shape, DTYPE, seed=seed, low=-2, high=2) for seed, (name, shape) in enumerate(shapes.items())
    }
    return parameters | {"second.bias": degree * parameters["second.bias"]}


def batch(degree: int, seed: int) -> TokensAndGrad:
    tokens = integers((TOKENS,), torch.int64, seed=seed, low=0, high=2 * degree - 1)
    return tokens, integers((TOKENS, WIDTH), DTYPE, seed=seed + 1, low=-2, high=2)


def on_one_device(parameters: Tensors, frozen: frozenset[str], batches: list[TokensAndGrad], rate: float) -> Tensors:
    """The model from its formula, and SGD of what is not frozen."""
    for tokens, grad in batches:
        leaves = {name: value.clone().requires_grad_(name not in frozen) for name, value in parameters.items()}
        one_hot = functional.one_hot(tokens, len(parameters["by_words.weight"])).to(DTYPE)
        embedded = one_hot @ (leaves["by_words.weight"] + leaves["by_features.weight"])
        hidden = linear({**leaves, "input": embedded}, "first.").relu()
        output = linear({**leaves, "input": hidden}, "second.")
        trained = [name for name in leaves if name not in frozen]
        gradients = torch.autograd.grad(output, [leaves[name] for name in trained], grad)
        moved = {name: parameters[name] - rate * gradient for name, gradient in zip(trained, gradients, strict=True)}
        parameters = parameters | moved
    return parameters


@pytest.mark.ranks(2, 3)
def test_frozen_parameters(ranks: Ranks) -> None:
    """Each one by itself, each one but that, and none; two steps. All numbers are whole and far below 2**53."""
    degree = ranks.world_size
    parameters = drawn(degree)
    alone = [frozenset({name}) for name in parameters]
    sets = [frozenset[str](), *alone, *(frozenset(parameters) - one for one in alone)]
    batches = [batch(degree, seed) for seed in (10, 20)]
    # Multiples of the number of ranks: the last bias keeps whole shares.
    rate = float(degree)
    results = ranks.run(partly_frozen, parameters=parameters, frozen=sets, batches=batches, rate=rate)
    for number, frozen in enumerate(sets):
        expected = per_rank(on_one_device(parameters, frozen, batches, rate), degree, SPLIT)
        for rank, want in enumerate(expected):
            trains, got = results[rank][number]
            where = f"rank {rank}, {', '.join(sorted(frozen)) or 'nothing'} frozen"
            assert trains == set(parameters) - frozen, f"{where}: {', '.join(sorted(trains))} train"
            for name, value in want.items():
                assert_close(got[name], value, f"{where}: {name}")
