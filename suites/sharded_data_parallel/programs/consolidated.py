"""ZeRO-1's optimizer state is brought together on one rank, leaves the training, and enters another one."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from pytest_gpuperf import Context
from suites.shared.problems import Network, Problem, optimizer_class
from suites.shared.sharding import parameters_on_device
from suites.shared.step import Step, Tensors
from suites.shared.training import Packed, all_steps, batches_on_device, problem_step, zero_redundancy

BEFORE = 2
"""Steps before the state is brought together; one more comes after it."""


def resumed(
    ctx: Context, *, problem: Problem, to: int, sharded: bool, late_group: bool, buckets: bool
) -> tuple[Packed, list[str]]:
    """Trains two steps, brings the state together, loads it into a training of other weights, and trains one more.

    Args:
        ctx: the rank's context.
        problem: what is trained, in three steps.
        to: the rank that gets the whole state.
        sharded: whether the third step's optimizer shards its state as well; else each rank has all of it.
        late_group: whether the parameters of the last layer join the optimizer as a second group.
        buckets: whether ranks send all parameters of one of them in one tensor.

    Returns:
        What the steps return; and the parameters' keys in the state, with what each has.
    """
    module, optimizer = _prepared(ctx, problem, rank=0, sharded=True, late_group=late_group, buckets=buckets)
    results = all_steps(_step(ctx, problem, module, optimizer, slice(0, BEFORE)), BEFORE)
    state = _together(ctx, optimizer, to)
    told = [f"{key}: {sorted(of_parameter)}" for key, of_parameter in sorted(state["state"].items())]
    after, second = _prepared(ctx, problem, rank=1, sharded=sharded, late_group=late_group, buckets=buckets)
    after.load_state_dict(module.state_dict())
    second.load_state_dict(state)
    last = _step(ctx, problem, after, second, slice(BEFORE, BEFORE + 1))
    return Packed.of(results | all_steps(last, 1, first=BEFORE + 1)), told


def _together(ctx: Context, optimizer: torch.optim.Optimizer, to: int) -> dict[str, Any]:
    """The whole state, which rank ``to`` gets and sends to all."""
    consolidating: Any = optimizer
    consolidating.consolidate_state_dict(to=to)
    held: list[Any] = [optimizer.state_dict() if ctx.rank == to else None]
    dist.broadcast_object_list(held, src=to, device=ctx.device)
    state: dict[str, Any] = held[0]
    return state


def _prepared(
    ctx: Context, problem: Problem, *, rank: int, sharded: bool, late_group: bool, buckets: bool
) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    module = DistributedDataParallel(Network(parameters_on_device(ctx, problem.parameters(rank))))
    kind, arguments = optimizer_class(problem)
    names = [name for name, _ in module.named_parameters()]
    late = [name for name in names if late_group and name.startswith("module.second")]
    early = [module.get_parameter(name) for name in names if name not in late]
    if sharded:
        optimizer = zero_redundancy()(
            early, kind, process_group=dist.new_group(), parameters_as_bucket_view=buckets, **arguments
        )
    else:
        optimizer = kind(early, **arguments)
    if late:
        optimizer.add_param_group({"params": [module.get_parameter(name) for name in late]})
    return module, optimizer


def _step(
    ctx: Context, problem: Problem, module: DistributedDataParallel, optimizer: torch.optim.Optimizer, of: slice
) -> Step[Tensors]:
    return problem_step(problem, module, optimizer, batches_on_device(ctx, problem)[of], module.no_sync)
