"""A schedule of one's own: operations in a given order, which torch's base class runs."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, _Action

from pytest_gpuperf import Context
from suites.pipeline_parallel.programs.stages import Layers, placed, sequential
from suites.pipeline_parallel.programs.training import linear_loss
from suites.shared.step import Tensors, gradient_of


class Ordered(PipelineScheduleMulti):
    """Runs operations in the given order."""

    def __init__(self, stages: list[Any], microbatches: int, *, orders: list[str], **more: Any) -> None:
        super().__init__(stages, microbatches, **more)
        # Each rank's operations by point in time, as torch writes them: 2F0 is stage 2's forward of 0. A dash is none.
        self.pipeline_order = {
            rank: [None if one == "-" else _Action.from_str(one) for one in order.split()]
            for rank, order in enumerate(orders)
        }


def train_ordered(
    ctx: Context,
    *,
    orders: list[str],
    stages: list[Layers],
    x: torch.Tensor,
    target: torch.Tensor,
    microbatches: int,
) -> Tensors:
    """A step that returns no output, and one with the double of the batch: gradients of both, losses, the output.

    Args:
        ctx: the rank's context.
        orders: what each rank does, by point in time.
        stages: the layers of all stages; a rank has every so manieth one.
        x: the whole batch.
        target: what the loss multiplies the output with.
        microbatches: how many the batch is cut into; gradients of each step are divided by it.
    """
    indices = placed("Interleaved1F1B", ctx.rank, ctx.world_size, len(stages))
    modules = {index: sequential(stages[index], ctx.device) for index in indices}
    made = [PipelineStage(module, index, len(stages), ctx.device) for index, module in modules.items()]
    runner = Ordered(made, microbatches, orders=orders, loss_fn=linear_loss)
    losses: list[torch.Tensor] = []
    last: dict[str, Any] = {"target": target.to(ctx.device), "losses": losses} if len(stages) - 1 in indices else {}
    found: Tensors = {}
    for step in (1, 2):
        inputs = (step * x.to(ctx.device),) if 0 in indices else ()
        output = runner.step(*inputs, **last, return_outputs=step == 2)
        if last and step == 1:
            assert output is None, "a step returned what nobody wants"
        if last:
            found[f"losses {step}"] = torch.stack([loss.detach() for loss in losses])
        for index, module in modules.items():
            for name, value in module.named_parameters():
                found[f"stage {index}.{name} {step}"] = gradient_of(value).clone()
            module.zero_grad()
    return found | ({"output": output.detach()} if last else {})
