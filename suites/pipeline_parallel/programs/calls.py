"""Schedules called in the ways that other programs do not: see ``train_called``."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.microbatch import TensorChunkSpec, sum_reducer
from torch.distributed.pipelining.schedules import get_schedule_class

from pytest_gpuperf import Context
from suites.pipeline_parallel.programs.stages import RUNNERS, SINGLE, SPLITTING, evaluates, placed
from suites.shared.step import Tensors, gradient_of

POWER = 3
"""What the stages get beside tensors."""

DEFERRING = ("Interleaved1F1B", "LoopedBFS")
"""Schedules that may receive late; torch 2.13 has others receive in another order than their neighbours send."""


class Called(nn.Module):
    """The magnitudes of a product, by a gate, less what the stage before got, and a bias that does not train."""

    def __init__(self, weight: torch.Tensor, *, last: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.ones_like(weight[0]), requires_grad=False)
        self.unused = nn.Parameter(torch.ones_like(weight[0]))
        self._last = last

    def forward(
        self, x: torch.Tensor, before: torch.Tensor | None = None, *, gates: dict[str, list[torch.Tensor]], power: int
    ) -> Any:
        """A list of the output and the input for the next stage; of the last stage a tuple of output and sum."""
        rows, shift = gates["both"]
        output = (x @ self.weight).abs() * rows + power * shift + self.bias
        if before is not None:
            output = output - before
        return (output, output.sum()) if self._last else [output, x * rows]


def loss_of_both(outputs: tuple[torch.Tensor, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    """A sum over the output, and its sum twice."""
    output, total = outputs
    return (output * target).sum() + 2 * total


def train_called(
    ctx: Context,
    *,
    schedule: str,
    weights: list[torch.Tensor],
    x: torch.Tensor,
    rows: torch.Tensor,
    shift: torch.Tensor,
    target: torch.Tensor,
    microbatches: int,
    frozen: bool,
) -> Tensors:
    """An evaluation, a step that returns no output, one that does, and another evaluation, of other batches.

    After it a schedule without a loss has the last batch again. All others note their losses in one list. Keyword
    arguments are tensors in containers, and a number.

    Args:
        ctx: the rank's context.
        schedule: a key of ``RUNNERS``.
        weights: of each stage's layer.
        x: the whole batch.
        rows: a factor of each row; it has a gradient, if the schedule does not split backwards.
        shift: what is added to each row.
        target: of the loss.
        microbatches: how many the batch is cut into.
        frozen: whether the first stage's weight does not train; if it does, the batch has a gradient too.

    Returns:
        Sums of both steps' gradients of weights and of the factor, each step's gradient of the batch, and on the rank
        of the last stage losses and outputs.
    """
    count = len(weights)
    indices = placed(schedule, ctx.rank, ctx.world_size, count)
    modules = {index: Called(weights[index].to(ctx.device), last=index == count - 1) for index in indices}
    first, last = 0 in modules, count - 1 in modules
    if first:
        modules[0].weight.requires_grad_(not frozen)
        modules[0].unused.requires_grad_(not frozen)
    stages = [PipelineStage(module, index, count, ctx.device) for index, module in modules.items()]
    assert get_schedule_class(schedule.lower()) is RUNNERS[schedule], "a schedule is found by another one's name"
    takes = inspect.signature(RUNNERS[schedule]).parameters
    more = {"defer_pp_recv": True} if schedule in DEFERRING and "defer_pp_recv" in takes else {}
    runner = RUNNERS[schedule](
        stages[0] if schedule in SINGLE else stages,
        microbatches,
        loss_fn=loss_of_both,
        output_merge_spec=(TensorChunkSpec(0), sum_reducer),
        scale_grads=False,
        **more,
    )
    batches = [(times * x.to(ctx.device)).requires_grad_(not frozen) for times in range(5)]
    gate = rows.to(ctx.device).clone().requires_grad_(schedule not in SPLITTING)
    gates = {"both": [gate, shift.to(ctx.device)]}
    losses: list[torch.Tensor] = []
    results: Tensors = {}

    def call(way: Any, times: int, **more: Any) -> Any:
        inputs = (batches[times],) if first else ()
        given = {"target": times * target.to(ctx.device), "losses": losses} if last else {}
        outputs = way(*inputs, gates=gates, power=POWER, **given, **more)
        if last:
            results[f"losses {times}"] = torch.stack([loss.detach() for loss in losses])
        return outputs

    def note(outputs: Any, times: int) -> None:
        if last:
            results[f"output {times}"], results[f"sum {times}"] = (one.detach().clone() for one in outputs)
        else:
            assert outputs is None, "a stage that is not the last one returned something"

    if evaluates(schedule):
        note(call(runner.eval, 3), 3)
    assert call(runner.step, 1, return_outputs=False) is None, "a step returned what nobody wants"
    note(call(runner.step, 2), 2)
    if evaluates(schedule):
        note(call(runner.eval, 4), 4)
        # Without a loss a step is an evaluation.
        fresh = [PipelineStage(module, index, count, ctx.device) for index, module in modules.items()]
        only = RUNNERS[schedule](
            fresh[0] if schedule in SINGLE else fresh,
            microbatches,
            output_merge_spec=(TensorChunkSpec(0), sum_reducer),
            scale_grads=False,  # torch scales whatever gradients there are, of earlier steps too
        )
        given = (batches[4].detach(),) if first else ()
        note(only.step(*given, gates=gates, power=POWER), 5)
    for index, module in modules.items():
        still = [name for name in ("bias", "unused") if getattr(module, name).grad is not None]
        assert not still, f"stage {index}: what has no gradient has one: {still}"
        if module.weight.requires_grad:
            results[f"stage {index}"] = gradient_of(module.weight)
        else:
            assert module.weight.grad is None, "a weight that does not train has a gradient"
    if first and not frozen:
        results |= {f"batch {times}": gradient_of(batches[times]) for times in (1, 2)}
    if gate.requires_grad:
        results["rows"] = gradient_of(gate)
    return results


def train_both(ctx: Context, *, schedule: str, **given: Any) -> list[Tensors]:
    """The results of a first stage that trains, and of one that does not, where torch can split such a backward."""
    ways = [False] if schedule in SPLITTING else [False, True]
    return [train_called(ctx, schedule=schedule, frozen=frozen, **given) for frozen in ways]
