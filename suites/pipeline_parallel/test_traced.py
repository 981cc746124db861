"""Stages that torch has cut have the whole model's gradients, exactly."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from pytest_gpuperf import Ranks
from suites.pipeline_parallel.programs.carrying import needs_no_gradient
from suites.pipeline_parallel.programs.traced import Cut, train_skipping, train_traced
from suites.shared.comparison import assert_same
from suites.shared.inputs import integers
from suites.shared.step import Tensors, gradient_of

MICROBATCHES, ROWS = 5, 2


def whole(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return integers(shape, torch.float64, seed=seed, low=-3, high=4)


@pytest.mark.ranks(3)
@pytest.mark.parametrize(
    ("cut", "schedule"), [("in the code", "GPipe"), ("before layers", "1F1B"), ("around a layer", "1F1B")]
)
def test_a_model_that_torch_cuts(ranks: Ranks, cut: Cut, schedule: str) -> None:
    shapes = {"first.weight": (3, 4), "second.weight": (4, 4), "third.weight": (4, 4), "scale": (4,), "offset": (4,)}
    weights = {name: whole(shape, seed) for seed, (name, shape) in enumerate(shapes.items())}
    batch = MICROBATCHES * ROWS
    x, factor, target = whole((batch, 3), 10), whole((batch, 1), 11), whole((batch, 4), 12)
    given = {"schedule": schedule, "cut": cut, "weights": weights, "x": x, "factor": factor, "target": target}
    got = ranks.run(train_traced, microbatches=MICROBATCHES, **given)
    held = [["scale", "first.weight"], ["second.weight"], ["scale", "third.weight", "output"]]
    if cut == "around a layer":
        held = [["first.weight"], ["scale", "second.weight"], held[2]]
    assert [sorted(of_rank) for of_rank in got] == [sorted(names) for names in held]
    summed: Tensors = {}
    for of_rank in got:  # each stage has what its own use of the scale gives
        for name, tensor in of_rank.items():
            summed[name] = summed.get(name, 0) + tensor
    leaves = {name: value.clone().requires_grad_(name != "offset") for name, value in weights.items()}
    for step in (1, 2):
        first = (step * x * factor @ leaves["first.weight"]).abs()
        second = (first * leaves["scale"] @ leaves["second.weight"]).abs() + leaves["offset"] * first
        output = (second @ leaves["third.weight"]).abs() * leaves["scale"] + 2 * second
        (output * target).sum().backward()
    expected = {name: value.grad for name, value in leaves.items() if value.grad is not None}
    assert_same([summed], [expected | {"output": output.detach()}], ordered=False)


@pytest.mark.ranks(4)
@pytest.mark.skipif(not needs_no_gradient(), reason="this torch wants a gradient of all that a stage hands on")
def test_what_goes_past_a_stage(ranks: Ranks) -> None:
    """The pipeline is of all ranks but the first, and is evaluated before it trains."""
    names = ("first", "second", "third")
    weights = {name: whole((3, 3), seed) for seed, name in enumerate(names)} | {"table": whole((4, 3), 3)}
    batch = MICROBATCHES * ROWS
    x, target, tokens = whole((batch, 3), 10), whole((batch, 3), 11), torch.arange(batch) * 7 % 4
    got = ranks.run(train_skipping, weights=weights, x=x, tokens=tokens, target=target, microbatches=MICROBATCHES)
    leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
    later = (tokens + 1) % 4
    outputs: Tensors = {}
    for times in (1, 2, 3, 4):
        first = (times * x @ leaves["first"]).abs()
        second = (first @ leaves["second"]).abs() + functional.embedding(later, leaves["table"])
        output = (second @ leaves["third"]).abs() * (later[:, None] + 1) + 2 * first + 1
        outputs[f"output {times}"] = output.detach()
        if times < 3:
            (output * target).sum().backward()
    gradients = {name: gradient_of(leaf) for name, leaf in leaves.items()}
    layer = {name: {f"layers.{name}.weight": gradients[name]} for name in names}
    expected = [{}, layer["first"], layer["second"] | {"table": gradients["table"]}, layer["third"] | outputs]
    assert_same(got, expected, ordered=False)
