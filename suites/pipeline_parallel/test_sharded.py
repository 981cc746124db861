"""Stages that pass on DTensors give the gradients of one device; chunks are put together to what they were cut from."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.pipeline_parallel.programs.sharded import (
    SCHEDULES,
    cut_and_merged,
    passes_dtensors,
    train_sharded,
    train_sharded_stages,
)
from suites.pipeline_parallel.programs.stages import placed
from suites.shared.comparison import assert_each, assert_same
from suites.shared.inputs import integers
from suites.shared.step import gradient_of

DTYPE = torch.float64
NEEDS_DTENSORS = pytest.mark.skipif(not passes_dtensors(), reason="this torch's stages pass on no DTensors")


@NEEDS_DTENSORS
@pytest.mark.ranks(4)
@pytest.mark.parametrize("static", [False, True], ids=["found out", "told"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stages_share_their_weights(ranks: Ranks, schedule: str, static: bool) -> None:
    """Both ranks of the first stage pass on another number of columns."""
    weights = [integers(shape, DTYPE, seed=seed, low=-2, high=2) for seed, shape in enumerate([(6, 5), (5, 2)], 1)]
    x, target = (integers((4, columns), DTYPE, seed=columns, low=-2, high=3) for columns in (6, 2))
    got = ranks.run(train_sharded, schedule=schedule, static=static, x=x, target=target, weights=weights)
    leaves = [weight.clone().requires_grad_() for weight in weights]
    output = (x @ leaves[0]).square() @ leaves[1]
    (output * target).sum().backward()
    first, last = ({"gradient": gradient_of(leaf)} for leaf in leaves)
    last["output"] = output.detach()
    assert_same(got, [first, first, last, last], ordered=False)


@NEEDS_DTENSORS
@pytest.mark.ranks(4)
@pytest.mark.parametrize("schedule", ["Interleaved1F1B", "ZBVZeroBubble", "DualPipeV"])
def test_several_stages_that_share_their_weights(ranks: Ranks, schedule: str) -> None:
    """What stages pass on is cut by columns and whole in turn, from rank to rank or within one."""
    shapes = [(4, 5), (5, 3), (3, 4), (4, 2)]
    weights = [integers(shape, DTYPE, seed=seed, low=-1, high=1) for seed, shape in enumerate(shapes, 1)]
    x, target = (integers((4, columns), DTYPE, seed=columns, low=-1, high=2) for columns in (4, 2))
    got = ranks.run(train_sharded_stages, schedule=schedule, x=x, target=target, weights=weights)
    leaves = [weight.clone().requires_grad_() for weight in weights]
    output = ((-x @ leaves[0]).square() @ leaves[1] @ leaves[2]).square() @ leaves[3]
    (output * target).sum().backward()
    expected = []
    for pair in (0, 1):
        own = placed(schedule, pair, 2, 4)
        of_pair = {f"gradient {index}": gradient_of(leaves[index]) for index in own}
        expected += [of_pair | ({"output": output.detach()} if 3 in own else {})] * 2
    assert_same(got, expected, ordered=False)


@NEEDS_DTENSORS
@pytest.mark.ranks(2)
def test_chunks_are_put_together(ranks: Ranks) -> None:
    """Three chunks of five rows and of seven columns; ranks share the columns unevenly, too."""
    x = integers((5, 7), DTYPE, seed=1)
    for rank, got in enumerate(ranks.run(cut_and_merged, x=x, chunks=3)):
        where = f"rank {rank}"
        assert_each(got["rows"], list(x.tensor_split(3)), f"{where}, rows")
        assert_each(got["columns"], list(x.tensor_split(3, 1)), f"{where}, columns")
        assert_each(got["shared rows"], list(x.tensor_split(3)), f"{where}, shared rows")
        names = ["merged rows", "merged columns", "merged shared", "sum"]
        assert_each([got[name] for name in names], [x, x, x, x.sum()], f"{where}, put together")
        first = [part[0] for part in x.tensor_split(3)]
        doubled = 8 + 4 * first[0] + 2 * first[1] + first[2]
        names = ["nested rows", "nested columns", "doubled"]
        assert_each([got[name] for name in names], [x, x, doubled], f"{where}, from containers")
        assert got["number"] == 7, f"{where}: the number of all chunks is {got['number']}"
        assert got["numbers"] == [7] * 3, f"{where}: numbers of the chunks {got['numbers']}, expected 7 each"
        assert got["shapes"] == [[2, 7], [2, 7], [1, 7]], f"{where}: shapes of the shared chunks {got['shapes']}"
