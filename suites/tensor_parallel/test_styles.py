"""In whatever layout tensors come and go, layers compute what one device does: whole numbers, exactly."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.tensor import Placement, Shard
from torch.nn import functional

from pytest_gpuperf import Ranks
from suites.shared.comparison import assert_same
from suites.shared.inputs import integers
from suites.shared.references import by_autograd
from suites.shared.sharding import shard
from suites.shared.step import Tensors
from suites.tensor_parallel.programs.styles import WAYS, convolved, layer, pair, second_derivative
from suites.tensor_parallel.reference import DTYPE

pytestmark = pytest.mark.ranks(3)

OLD = torch.__version__ < "2.13"  # compared as a version


def part(whole: torch.Tensor, placement: Placement, rank: int) -> torch.Tensor:
    return shard(whole, 3, placement.dim)[rank] if isinstance(placement, Shard) else whole


@pytest.mark.parametrize("way", WAYS)
def test_layouts_around_a_layer(ranks: Ranks, way: str) -> None:
    x, grad = integers((6, 3, 6), DTYPE, seed=1), integers((6, 3, 9), DTYPE, seed=2)
    weight, bias = integers((9, 6), DTYPE, seed=3), 3 * integers((9,), DTYPE, seed=4)
    got = ranks.run(layer, way=way, x=x, weight=weight, bias=bias, grad=grad)
    leaves = {"input": x, "weight": weight, "bias": bias}
    whole = by_autograd(lambda now: functional.linear(now["input"], now["weight"], now["bias"]), leaves, grad)
    layouts = {"output": WAYS[way].returned, "input gradient": WAYS[way].given}
    expected: list[Tensors] = []
    for rank in range(3):
        own = {name: part(value, layouts[name], rank) if name in layouts else value for name, value in whole.items()}
        expected.append({name.removesuffix(" gradient"): value for name, value in own.items()})
    assert_same(got, expected, ordered=False)


@pytest.mark.parametrize("distributed", [True, False], ids=["a DTensor", "local"])
def test_several_inputs_and_outputs(ranks: Ranks, distributed: bool) -> None:
    """What is no tensor goes through as it is."""
    x, other = integers((6, 3), DTYPE, seed=5), integers((6, 3), DTYPE, seed=6)
    got = ranks.run(pair, x=x, other=other, distributed=distributed)
    whole = {"sum": (x + 3 * other, Shard(1)), "product": (x * other, Shard(0))}
    expected = [{name: part(value, where, rank) for name, (value, where) in whole.items()} for rank in range(3)]
    assert_same([tensors for tensors, _ in got], expected)
    assert [factor for _, factor in got] == [3] * 3


@pytest.mark.skipif(
    OLD, reason=f"torch {torch.__version__} pads no convolution with a stride, if images are cut: 2.13 is needed"
)
@pytest.mark.parametrize("biased", [True, False], ids=["with a bias", "without"])
def test_convolutions(ranks: Ranks, biased: bool) -> None:
    """The last rank has one image less than the others."""
    x, weight, bias = (integers(shape, DTYPE, seed=7) for shape in ((5, 2, 6, 7), (4, 2, 3, 3), (4,)))
    leaves = {"images": x, "filters": weight} | ({"shift": bias} if biased else {})
    grad = integers((5, 4, 3, 4), DTYPE, seed=8)

    def formula(now: Tensors) -> torch.Tensor:
        return functional.conv2d(now["images"], now["filters"], now.get("shift"), stride=2, padding=1)

    got = ranks.run(convolved, x=x, weight=weight, bias=bias if biased else None, grad=grad)
    assert_same(got, [by_autograd(formula, leaves, grad)] * 3, ordered=False)


@pytest.mark.skipif(OLD, reason=f"torch {torch.__version__} has no second derivatives of DTensors: 2.13 is needed")
def test_second_derivatives(ranks: Ranks) -> None:
    """Three rows and four columns: the last rank has none of these."""
    x = integers((4, 3), DTYPE, seed=9)
    assert_same(ranks.run(second_derivative, x=x), [{"first": 3 * x**2, "second": 36 * x**3}] * 3)
