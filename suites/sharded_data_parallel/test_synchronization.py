"""A step ends when the parameters of all ranks have arrived, however late they come."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context, Ranks
from suites.sharded_data_parallel.programs import stages as programs
from suites.shared.problems import Problem
from suites.shared.references import assert_trained, whole_batch


class Late:
    """A broadcast that brings nothing before somebody waits for it: the slowest network that there may be."""

    def __init__(self, broadcast: Callable[[], object]) -> None:
        self._broadcast: Callable[[], object] | None = broadcast

    def wait(self, *_: object) -> bool:
        """Broadcasts, the first time."""
        if self._broadcast is not None:
            self._broadcast()
        self._broadcast = None
        return True


def with_late_broadcasts(ctx: Context, *, problem: Problem, parameters_as_bucket_view: bool) -> programs.Account:
    """Trains with broadcasts that come as late as they may."""
    broadcast = dist.broadcast

    def late(tensor: torch.Tensor, *args: Any, async_op: bool = False, **kwargs: Any) -> Any:
        begin = partial(broadcast, tensor, *args, **kwargs)
        return Late(begin) if async_op else begin()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "broadcast", late)
        return programs.account(
            ctx,
            programs.zero_redundancy_optimizer,
            problem=problem,
            parameters_as_bucket_view=parameters_as_bucket_view,
            count=False,
        )


@pytest.mark.ranks(2)  # each rank takes a second to import ZeroRedundancyOptimizer
@pytest.mark.parametrize("parameters_as_bucket_view", [False, True], ids=["each parameter", "in buckets"])
def test_every_broadcast_is_waited_for(ranks: Ranks, parameters_as_bucket_view: bool) -> None:
    problem = Problem(world_size=ranks.world_size, seed=1, wide=True)
    accounts = ranks.run(with_late_broadcasts, problem=problem, parameters_as_bucket_view=parameters_as_bucket_view)
    assert_trained(problem, [account.results for account in accounts], whole_batch(problem))
