"""Parameters of all kinds in one module: DistributedDataParallel gives them the means of the ranks, exactly."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from pytest_gpuperf import Ranks
from suites.data_parallel.programs.modules import Unlike, given_to, told_of, trained
from suites.shared.comparison import assert_same
from suites.shared.step import Tensors, gradient_of

STEPS = 2


def expected(degree: int) -> list[list[Tensors]]:
    """What each step leaves on each rank, if one process computes all ranks' gradients."""
    module, steps = Unlike(0), []
    trains = [value for value in module.parameters() if value.requires_grad]
    for step in range(STEPS):
        before = module.calls.clone()
        losses, sums = [], [torch.zeros_like(value) for value in trains]
        for rank in range(degree):
            module.zero_grad()
            module.calls.copy_(before)
            loss = module(given_to(rank, step, degree))
            loss.backward()
            losses.append(loss.detach())
            sums = [total + gradient_of(value).to_dense() for total, value in zip(sums, trains, strict=True)]
        with torch.no_grad():
            for value, total in zip(trains, sums, strict=True):
                value.grad = (total / degree).to(value.dtype)
                value.sub_(value.grad)
        steps.append([told_of(module, loss) for loss in losses])
    return steps


@pytest.mark.ranks(3)
@pytest.mark.parametrize(
    ("buckets", "views"),
    [((25.0,), True), ((2**-20,), False), ((2**-13, 2**-20, 25.0), True)],
    ids=["one", "many, copied", "listed"],
)
def test_parameters_that_are_unlike(ranks: Ranks, buckets: tuple[float, ...], views: bool) -> None:
    """A gradient lies in memory as its parameter does, whether it is a view of a bucket or not."""
    if len(buckets) > 1 and "bucket_cap_mb_list" not in inspect.signature(DistributedDataParallel).parameters:
        pytest.skip(f"torch {torch.__version__} has no bucket_cap_mb_list of DistributedDataParallel")
    got = ranks.run(trained, steps=STEPS, buckets=buckets, views=views)
    for step, of_ranks in enumerate(expected(3)):
        assert_same([told[step] for told, _ in got], of_ranks, ordered=False)
    module = Unlike(0)
    strides = [(name, value.stride()) for name, value in module.named_parameters() if value.requires_grad]
    for rank, (_, found) in enumerate(got):
        assert found == [pair for pair in strides if pair[0] != "table.weight"], f"rank {rank}: strides {found}"
