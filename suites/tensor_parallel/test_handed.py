"""Layers that hand DTensors on to each other compute what one device does: whole numbers, exactly."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.shared.comparison import assert_same
from suites.shared.inputs import integers
from suites.shared.step import gradient_of
from suites.tensor_parallel.programs.handed import Handing, handed_on
from suites.tensor_parallel.reference import DTYPE

TOKENS, WORDS, WIDTH, HIDDEN = 4, 5, 4, 7
PADDING = 3


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("batch", "whole", "distributed"),
    [(5, True, True), (6, False, False)],
    ids=["a DTensor, and whole outputs", "parts of tokens and of outputs"],
)
def test_layers_that_hand_dtensors_on(ranks: Ranks, batch: int, whole: bool, distributed: bool) -> None:
    """The hidden features are shared unevenly, and so is a DTensor's batch; one word does not train."""
    shapes = {
        "table": (WORDS, WIDTH),
        "before": (2, WIDTH),
        "after": (2, WIDTH),
        "up": (HIDDEN, WIDTH),
        "up bias": (HIDDEN,),
        "down": (WIDTH, HIDDEN),
        "down bias": (WIDTH,),
    }
    parameters = {name: 2 * integers(shape, DTYPE, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}
    tokens = integers((batch, TOKENS), torch.int64, seed=8, low=0, high=WORDS - 1)
    grad = integers((batch, TOKENS, WIDTH), DTYPE, seed=9)
    assert (tokens == PADDING).any()
    model = Handing(parameters, PADDING)
    output = model(tokens=tokens)
    output.backward(grad)
    gradients = {f"{name} gradient": gradient_of(value) for name, value in model.named_parameters()}
    outputs = [output.detach()] * 2 if whole else output.detach().chunk(2)
    got = ranks.run(
        handed_on,
        parameters=parameters,
        padding=PADDING,
        tokens=tokens,
        grad=grad,
        whole=whole,
        distributed=distributed,
    )
    assert_same(got, [{"output": of_rank, **gradients} for of_rank in outputs], ordered=False)
