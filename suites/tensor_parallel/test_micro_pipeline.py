"""A sequence-parallel MLP computes what the whole one does, compiled and with products and collectives in one, exactly.

Steps have weights, inputs and output gradients of their own, in whole numbers.
"""

from __future__ import annotations

from collections import Counter
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.utils.flop_counter import FlopCounterMode

from pytest_gpuperf import Context, Ranks
from suites.shared.inputs import Given
from suites.shared.step import Tensors, once
from suites.tensor_parallel.programs import linear_layers
from suites.tensor_parallel.programs import micro_pipeline as programs
from suites.tensor_parallel.reference import all_wide, assert_steps, parameters, x_and_grad
from suites.tensor_parallel.test_correctness import two_layers

DIMS = {"output": 0, "input gradient": 0, "0.weight gradient": 0, "2.weight gradient": 1}
"""Tokens and hidden features are split over the ranks."""
WIDTH, PER_RANK = 32, 16


def given_to(degree: int) -> list[Given]:
    """Steps in which one factor has numbers with many bits, and the others have -1, 0 and 1.

    Sums of W T or W F of them stay exact: with 8 ranks these are 2**12, and ``all_wide`` leaves room for 2**14.
    """
    split = PER_RANK * degree
    drawn = parameters(("0.", split, WIDTH), ("2.", WIDTH, split), degree=degree, bias=False, seed=1)
    drawn |= x_and_grad((split,), WIDTH, WIDTH, 1)
    small = {name: value.clamp(-1, 1) for name, value in drawn.items()}
    x, grad = small.pop("x"), small.pop("grad")
    return all_wide(small, 1, x=x, grad=grad)


def taken(ctx: Context, given: list[Given], way: str) -> tuple[list[Tensors], programs.Compilation]:
    """What each step returns, and what the compiler has made of them."""
    step, made = programs.mlp(ctx, given=given, way=way)
    return [step() for _ in given], made


def assert_whole(ranks: Ranks, way: str) -> list[programs.Compilation]:
    given = given_to(ranks.world_size)
    results = ranks.run(taken, given, way)
    assert_steps([steps for steps, _ in results], given, two_layers, DIMS)
    for rank, (_, made) in enumerate(results):
        made.assert_made(f"rank {rank}")
    return [made for _, made in results]


@pytest.mark.ranks(2, 4)
def test_eager(ranks: Ranks) -> None:
    assert_whole(ranks, programs.EAGER)


# Compiling leaves threads and settings of torch in the process.
@pytest.mark.ranks(2, isolation="process")
@pytest.mark.long
def test_compiled(ranks: Ranks) -> None:
    """Each graph, forward and backward, gathers once and scatters once."""
    for made in assert_whole(ranks, programs.COMPILED):
        assert made.graphs == [Counter(programs.IN_TURN)] * 2


# Besides, torch keeps the names of groups that have symmetric memory, and another test's may have the same name.
@pytest.mark.ranks(2, 4, 8, nodes=1, device="cuda", isolation="process")
@pytest.mark.long
def test_micro_pipelined(ranks: Ranks) -> None:
    """Each graph calls both operations that torch makes of a product and its collective, and no collective alone."""
    assert_whole(ranks, programs.MICRO_PIPELINED)


@pytest.mark.parametrize(
    ("way", "graphs", "message"),
    [
        (programs.EAGER, [Counter()], r"rank 1: the compiler has made 1 graphs of the eager MLP, not 0"),
        (programs.COMPILED, [Counter(programs.IN_TURN)], r"1 graphs of the compiled MLP, not 2: one of forward and"),
        (
            programs.COMPILED,
            [Counter(programs.IN_TURN), Counter(programs.FUSED)],
            r"torch fused the backward graph of the compiled MLP, which calls symm_mem\.fused_all_gather_matmul",
        ),
        (
            programs.MICRO_PIPELINED,
            [Counter(), Counter(programs.FUSED)],
            r"torch did not fuse the forward graph of the micro-pipelined MLP, which calls no collective: ex",
        ),
        (
            programs.MICRO_PIPELINED,
            [Counter(programs.FUSED), Counter((*programs.FUSED, programs.IN_TURN[1]))],
            r"did not fuse the backward graph .*, which calls _c10d_functional\.reduce_scatter_tensor\.default \(1 t",
        ),
    ],
)
def test_graphs_that_are_not_as_meant_are_named(way: str, graphs: list[Counter[str]], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        programs.Compilation(way, graphs).assert_made("rank 1")


@pytest.mark.ranks(2)
def test_operations_and_the_time_of_the_first_step(ranks: Ranks) -> None:
    """The clock begins at 100 s, and ticks with each operation of a step, faster on the second rank."""
    shape = programs.MlpShape(tokens=8, width=5, hidden=6, dtype=torch.float64)

    def counted(ctx: Context) -> tuple[int, float]:
        given = programs.drawn(ctx, shape)
        with FlopCounterMode(display=False) as counter:
            output = linear_layers.two_layers(given.parameters)(given.x.requires_grad_())
            output.backward(given.grad)
        whole = counter.get_total_flops()
        counter = FlopCounterMode(display=False)

        def clock() -> float:
            return 100.0 + (1 + ctx.rank) * counter.get_total_flops()

        with counter, mock.patch("time.perf_counter", clock):
            programs.train(ctx, shape=shape, way=programs.EAGER)
        dist.barrier()  # all have told
        return int(whole), programs.compiling(ctx, way=programs.EAGER)

    (whole, first), (_, second) = ranks.run(counted)
    assert whole == shape.flop
    # torch 2.13 counts the products of DTensors whole.
    assert first in (whole, whole / ranks.world_size)
    assert second == 2 * first


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("what", "sizes"), [("tokens", (5, 4)), ("hidden features", (4, 5))])
def test_sizes_that_the_ranks_do_not_divide_are_refused(ranks: Ranks, what: str, sizes: tuple[int, int]) -> None:
    tokens, hidden = sizes
    shape = programs.MlpShape(tokens=tokens, width=4, hidden=hidden, dtype=torch.float32)
    with pytest.raises(ValueError, match=f"5 {what} cannot be split over 2 ranks: choose a multiple"):
        ranks.run(once, programs.train, shape=shape, way=programs.EAGER)
