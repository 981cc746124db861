"""However inputs and outputs are laid out, the numbers are those of one device: whole ones, exactly."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuperf import Ranks
from suites.shared.comparison import assert_each, assert_same, assert_within
from suites.shared.inputs import full_width, integers, rank_inputs
from suites.shared.sharding import shard
from suites.shared.strategies import seeds
from suites.tensor_parallel.programs.prepared import (
    along_sequence,
    gradients_of_parts,
    mapped,
    matched,
    partial_gradients,
    redistributed,
    reduced_gradients,
    replicas_checked,
    sharded_sum,
    styles,
)

pytestmark = pytest.mark.ranks(2, 3)
DTYPE = torch.float64
FEW = pytest.mark.examples(0.1)
"""Layouts matter more than numbers."""


@pytest.mark.parametrize("style", styles())
@FEW
@given(size=st.integers(1, 3), seed=seeds)
def test_inputs_by_place_and_by_name(ranks: Ranks, style: str, size: int, seed: int) -> None:
    """Each is given in a layout of its own, and is whole for the module; the output is by rows.

    One style gives the module DTensors and returns a local tensor, the others do the opposite.
    """
    degree = ranks.world_size
    x, other, grad = (integers((degree, degree * size), DTYPE, seed=3 * seed + part) for part in range(3))
    got = ranks.run(sharded_sum, style=style, x=x, other=other, grad=grad)
    expected = [
        {
            "DTensors": torch.tensor([True, True, False] if style == "inputs, then outputs" else [False, False, True]),
            "output": (x + 2 * other).chunk(degree)[rank],
            "gradient of x": grad.chunk(degree)[rank],
            "gradient of other": (2 * grad).chunk(degree, 1)[rank],
        }
        for rank in range(degree)
    ]
    assert_same(got, expected)


@pytest.mark.parametrize("dim", [0, 1])
def test_a_norm_along_either_dimension(ranks: Ranks, dim: int) -> None:
    """Against the formula: five roundings or so of each number, and as many more of each gradient as there are rows."""
    degree = ranks.world_size
    x = integers((2 * degree, 2 * degree, 4), DTYPE, seed=1, low=1, high=9)
    weight = integers((4,), DTYPE, seed=2, low=1, high=9)
    normed = x / x.square().mean(-1, keepdim=True).sqrt()
    gradient = normed.sum((0, 1))
    for rank, got in enumerate(ranks.run(along_sequence, x=x, weight=weight, dim=dim)):
        part = (normed * weight).chunk(degree, dim)[rank]
        assert_within(got["output"], part, part.abs() * 8 * 2.0**-53, f"rank {rank}, output")
        bound = gradient.abs() * (8 + len(x) ** 2) * 2.0**-53
        assert_within(got["weight gradient"], gradient, bound, f"rank {rank}, weight gradient")


@FEW
@given(rows=st.integers(1, 7), columns=st.integers(1, 7), seed=seeds)
def test_other_layouts_and_dtypes(ranks: Ranks, rows: int, columns: int, seed: int) -> None:
    """Rows and columns that ranks do not divide; float32 rounds the input off, and the gradient is in float64."""
    x = integers((rows, columns), DTYPE, seed=seed) + 2.0**-40
    grad = integers((rows, columns), torch.float32, seed=seed + 1)
    got = ranks.run(redistributed, x=x, grad=grad)
    parts = shard(2 * grad.double(), ranks.world_size, 0)
    assert_same(got, [{"output": 2 * x.float(), "gradient": part} for part in parts])


@FEW
@given(numel=st.integers(1, 7), gathered=st.booleans(), seed=seeds)
@example(numel=3, gathered=True, seed=1)
@example(numel=3, gathered=False, seed=1)
def test_gradients_that_are_parts_of_a_sum(ranks: Ranks, numel: int, gathered: bool, seed: int) -> None:
    grads = rank_inputs(ranks.world_size, shape=(numel,), dtype=DTYPE, seed=seed)
    got = ranks.run(partial_gradients, x=torch.ones(numel, dtype=DTYPE), grads=grads, gathered=gathered)
    assert_same(got, [{"gradient": torch.stack(grads).sum(0)}] * ranks.world_size)


def test_gradients_of_parts_of_a_sum(ranks: Ranks) -> None:
    """Each part adds to the sum by itself, so that its gradient is that of the sum, once."""
    degree = ranks.world_size
    parts = rank_inputs(degree, shape=(2 * degree, 3), dtype=DTYPE, seed=1)
    grad = integers((2 * degree, 3), DTYPE, seed=2)
    got = ranks.run(gradients_of_parts, parts=parts, grad=grad)
    assert_same(got, [{"local": 2 * part, "of the local part": 2 * grad, "of the sum": grad} for part in parts])


def test_gradients_are_summed_in_the_dtype_of_the_input(ranks: Ranks) -> None:
    """Odd numbers of 24 bits, of rank r times 2**r: float32 holds each of them, and rounds their sum."""
    degree = ranks.world_size
    grads = [full_width((2 * degree, 3), torch.float32, seed=rank, addends=1) * 2**rank for rank in range(degree)]
    total = torch.stack(grads).double().sum(0)
    assert not torch.equal(total, total.float().double())
    x = integers((2 * degree, 3), DTYPE, seed=1)
    got = ranks.run(reduced_gradients, x=x, grads=grads)
    assert_same(got, [{"output": x.float(), "gradient": part} for part in total.chunk(degree)])


def test_replicas_that_are_checked(ranks: Ranks) -> None:
    values = rank_inputs(ranks.world_size, shape=(3, 2), dtype=DTYPE, seed=1)
    got = ranks.run(replicas_checked, values=values)
    assert_same(got, [{"replica": values[0], "replica along the second axis": values[0]}] * ranks.world_size)


@pytest.mark.parametrize(("plan", "split"), [("*.up", (0, 1, 2)), ("[12].up", (1, 2)), ("1.up", (1,))])
def test_a_pattern_names_every_layer_that_it_matches(ranks: Ranks, plan: str, split: tuple[int, ...]) -> None:
    degree = ranks.world_size
    expected = [[2 if layer in split else 2 * degree, 2] for layer in range(3)]
    for rank, shapes in enumerate(ranks.run(matched, plan=plan, layers=3)):
        assert shapes == expected, f"rank {rank}: shapes of the layers' weights {shapes}, expected {expected}"


@FEW
@given(rows=st.integers(1, 4), inner=st.integers(1, 7), seed=seeds)
def test_functions_and_modules(ranks: Ranks, rows: int, inner: int, seed: int) -> None:
    x, weight = integers((rows, inner), DTYPE, seed=seed), integers((inner, 3), DTYPE, seed=seed + 1)
    got = ranks.run(mapped, x=x, weight=weight)
    for name in ("function", "module"):
        assert_each([of_rank[name] for of_rank in got], [x @ weight] * ranks.world_size, name)
