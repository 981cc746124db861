"""A split MLP with dropout and with clipped gradients trains as the whole one does."""

from __future__ import annotations

import math
from itertools import accumulate

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.shared.chances import assert_independent
from suites.shared.comparison import Results, assert_close, assert_same
from suites.shared.inputs import Given
from suites.shared.sharding import per_rank
from suites.shared.step import Tensors, each_step
from suites.tensor_parallel.programs import training as programs
from suites.tensor_parallel.reference import linear, parameters, whole_layer, x_and_grad
from suites.tensor_parallel.test_correctness import MLP, two_layers

P = 0.75  # scales by 4: whole numbers stay whole, and what is kept is not confused with what is dropped
ROWS = WIDTH = 32  # 1024 places of each rank's features, and of the output


def drawn(degree: int, *, rows: int, hidden: int, width: int, seed: int) -> Given:
    """An MLP of whole numbers, with biases."""
    layers = parameters(("0.", hidden, width), ("2.", width, hidden), degree=degree, bias=True, seed=seed)
    return Given(layers, **x_and_grad((rows,), width, width, seed))


def dropped(now: Given, hidden: torch.Tensor, output: torch.Tensor) -> Tensors:
    """The whole MLP, of which so much is kept."""

    def layers(leaves: Tensors) -> torch.Tensor:
        kept = linear(leaves, "0.").relu() * hidden / (1 - P)
        return linear({**leaves, "input": kept}, "2.") * output / (1 - P)

    return whole_layer(layers, now)


@pytest.mark.ranks(2, 4)
def test_dropout(ranks: Ranks) -> None:
    degree = ranks.world_size
    given = [drawn(degree, rows=ROWS, hidden=WIDTH * degree, width=WIDTH, seed=seed) for seed in (1, 2)]
    results = ranks.run(each_step, programs.mlp_with_dropout, len(given), given=given, p=P, seed=1234)
    masks: Tensors = {}
    for number, (now, got) in enumerate(zip(given, zip(*results, strict=True), strict=True), start=1):
        hidden = [result.pop("hidden kept") for result in got]
        outputs = [result.pop("output kept") for result in got]
        # Gradients and outputs of the ranks agree only where their masks of what all of them have do.
        assert_same(got, per_rank(dropped(now, torch.cat(hidden, -1), outputs[0]), degree, MLP))
        for rank, mask in enumerate(outputs):
            assert_close(mask, outputs[0], f"step {number}, rank {rank}, output kept")
        masks |= {f"rank {rank}'s features in step {number}": mask for rank, mask in enumerate(hidden)}
        masks |= {f"the output in step {number}": outputs[0]}
    assert_independent(masks, P)


RATE, MOMENTUM = 0.5, 0.5
SHARED = MLP | {
    f"{name}{of}": dim for name, dim in {"0.weight": 0, "0.bias": 0, "2.weight": 1}.items() for of in ("", " momentum")
}


def whole_training(given: list[Given], max_norm: float, norm_type: float) -> list[Tensors]:
    """Clipping and SGD from their formulas, https://docs.pytorch.org/docs/stable/generated/torch.optim.SGD.html."""
    steps = []
    for now in given:
        found = whole_layer(two_layers, now)
        gradients = {name: found[f"{name} gradient"] for name in now.parameters}
        together = torch.cat([gradient.flatten() for gradient in gradients.values()])
        norms = {1.0: together.abs().sum(), 2.0: together.square().sum().sqrt(), math.inf: together.abs().max()}
        norm = norms[norm_type]
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        steps.append((norm, {name: gradient * factor for name, gradient in gradients.items()}))
    momenta = accumulate(
        (clipped for _, clipped in steps), lambda old, new: {name: MOMENTUM * old[name] + new[name] for name in new}
    )
    results = []
    for now, (norm, clipped), momentum in zip(given, steps, momenta, strict=True):
        result = {"norm": norm} | {f"{name} gradient": value for name, value in clipped.items()}
        for name, value in now.parameters.items():
            result |= {name: value - RATE * momentum[name], f"{name} momentum": momentum[name]}
        results.append(result)
    return results


def clipping_tolerance(whole: Tensors, elements: int) -> float:
    """How far rounding may take anything; gradients are exact before they are clipped.

    A sum of n squares is off by n u of itself, its root by half of that and u, the factor by 3 u more, a clipped
    gradient by u more, momentum and parameters by 3 u of the largest of their summands. Twice, since the reference
    rounds too.
    """
    largest = max(float(value.abs().max()) for value in whole.values())
    return 2 * (elements + 10) * 2 * largest * 2**-53


def train(ranks: Ranks, given: list[Given], max_norm: float, norm_type: float = 2.0) -> list[Results]:
    """What the ranks hold after each step."""
    results = ranks.run(
        each_step,
        programs.mlp_with_clipping,
        len(given),
        given=given,
        rate=RATE,
        momentum=MOMENTUM,
        max_norm=max_norm,
        norm_type=norm_type,
    )
    return list(zip(*results, strict=True))


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(
    ("max_norm", "norm_type"),
    [(1.0, 2.0), (1.0, math.inf), (1.0, 1.0), (1e9, 2.0)],
    ids=["clipped", "largest", "sum", "below"],
)
def test_clipping(ranks: Ranks, max_norm: float, norm_type: float) -> None:
    degree = ranks.world_size
    given = [drawn(degree, rows=3, hidden=2 * degree, width=5, seed=seed) for seed in (1, 2, 3)]
    elements = sum(value.numel() for value in given[0].parameters.values())
    steps = train(ranks, given, max_norm, norm_type)
    for got, whole in zip(steps, whole_training(given, max_norm, norm_type), strict=True):
        assert_same(got, per_rank(whole, degree, SHARED), clipping_tolerance(whole, elements), ordered=False)


@pytest.mark.ranks(2, 3)
def test_a_gradient_of_one_rank_that_is_no_number(ranks: Ranks) -> None:
    """It makes the norm none on all ranks, and with it every gradient."""
    now = drawn(ranks.world_size, rows=3, hidden=2 * ranks.world_size, width=5, seed=1)
    # Of the last hidden feature, which the last rank has, and which ReLU lets through.
    now.parameters["0.bias"][-1] = 1000
    now.parameters["2.weight"][:, -1] = math.nan
    (got,) = train(ranks, [now], 1.0)
    for rank, result in enumerate(got):
        for name, tensor in result.items():
            assert bool(tensor.isnan().all()), f"rank {rank}, {name}: {tensor} has numbers"
