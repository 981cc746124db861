"""ZeRO-1 with groups of parameters, a closure and a parameter that is frozen later trains as one device does."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.sharded_data_parallel.programs.first_stage import DEFAULTS, groups, in_groups, of_step
from suites.shared.course import ROUNDING, Course, assert_each_has
from suites.shared.step import Tensors

COURSE = Course(seed=1, steps=4)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("buckets", [False, True], ids=["each parameter", "in buckets"])
def test_groups_and_a_closure(ranks: Ranks, buckets: bool) -> None:
    got = ranks.run(in_groups, course=COURSE, buckets=buckets)
    told = trained(ranks.world_size)
    assert_each_has(got, {name: value for name, value in told.items() if "loss" not in name})
    for rank, result in enumerate(got):
        own = {name: value for name, value in told.items() if name.endswith(f"loss of rank {rank}")}
        assert_each_has([result], own, ROUNDING)


def trained(degree: int) -> Tensors:
    """Parameters and each rank's loss after each step, of torch's optimizer over the whole batch."""
    network = COURSE.network()
    optimizer = torch.optim.SGD(groups(network), **DEFAULTS)
    told: Tensors = {}
    for step in range(COURSE.steps):
        of_step(network, optimizer, step)
        losses = [network(COURSE.batch(rank, step)[0]).square().mean() for rank in range(degree)]
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
        told |= {f"step {step}, {name}": value.detach().clone() for name, value in network.named_parameters()}
        told |= {f"step {step}, loss of rank {rank}": loss.detach() for rank, loss in enumerate(losses)}
    return told
