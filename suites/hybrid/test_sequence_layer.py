"""A layer on three axes, two of which share its parameters and two its batch, trains as one device does, exactly."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.hybrid.programs.sequence_layer import SHAPE, SHAPES, SPLIT, WIDTH, Layer, train
from suites.shared.comparison import assert_same
from suites.shared.inputs import integers
from suites.shared.sharding import shard
from suites.shared.step import Tensors, gradient_of

STEPS = 2


@pytest.mark.ranks(4)
def test_a_layer_on_three_axes(ranks: Ranks) -> None:
    """A rank has three hidden features, which two shards have unevenly; of replicas there is one."""
    weights = {name: integers(shape, torch.float64, seed=seed) for seed, (name, shape) in enumerate(SHAPES.items())}
    batches = [
        (
            integers((2, 6, WIDTH), torch.float64, seed=8 * step + 1),
            2 * integers((2, 6, WIDTH), torch.float64, seed=8 * step + 2),
        )
        for step in range(STEPS)
    ]
    got = ranks.run(train, weights=weights, batches=batches)
    layer = Layer(weights)
    for step, (x, grad) in enumerate(batches):
        layer.zero_grad()
        output = layer(x)
        output.backward(grad / 2)
        whole: Tensors = {}
        with torch.no_grad():
            for name, value in layer.named_parameters():
                gradient = gradient_of(value, name)
                value.sub_(gradient.sign())
                whole |= {f"{name} gradient": gradient, name: value.detach().clone()}
        expected = []
        for rank in range(4):
            part, place = rank % SHAPE[2], rank // SHAPE[2]
            own = {"output": output.detach()[place : place + 1].chunk(SHAPE[2], 1)[part]}
            for name, tensor in whole.items():
                dim = SPLIT.get(name.removesuffix(" gradient"))
                split = tensor if dim is None else tensor.chunk(SHAPE[2], dim)[part]
                own[name] = shard(split, SHAPE[1], 0)[place % SHAPE[1]]
            if step == STEPS - 1:
                own |= {f"{name}, whole": whole[name] for name in weights}
            expected.append(own)
        assert_same([told[step] for told in got], expected, ordered=False)
