"""A training step of a model cut into stages, by torch.distributed.pipelining.

A stage is a list of layers, a layer a pair of weight and bias; each layer is linear, and then the magnitude.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)

from pytest_gpuperf import Context
from suites.shared.step import Step, Tensors

Layers = list[tuple[torch.Tensor, torch.Tensor]]
Build = Callable[[Layers, torch.device], nn.Module]

RUNNERS: dict[str, Any] = {
    "GPipe": ScheduleGPipe,
    "1F1B": Schedule1F1B,
    "Interleaved1F1B": ScheduleInterleaved1F1B,
    "LoopedBFS": ScheduleLoopedBFS,
    "InterleavedZeroBubble": ScheduleInterleavedZeroBubble,
    "ZBVZeroBubble": ScheduleZBVZeroBubble,
    "DualPipeV": ScheduleDualPipeV,
}
SINGLE = ("GPipe", "1F1B")
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")


def cannot_run(schedule: str, backend: str, stage: type = PipelineStage) -> str | None:
    """Why the schedule cannot run on the backend with such stages, by default this torch's; None if it can.

    Before its first step torch 2.10 and 2.11 have every stage send to its neighbours, also where those are on the same
    rank, as in V-shaped schedules. gloo connects no rank to itself. Since 2.12 they vote instead.
    """
    if backend == "gloo" and schedule in V_SHAPED and not hasattr(stage, "_warmup_forward_vote"):
        return f"{schedule} of torch {torch.__version__} sends from a rank to itself, which gloo cannot; 2.12 does not"
    return None


def placed(schedule: str, rank: int, ranks: int, stages: int) -> list[int]:
    """The stages of a rank: every R-th one; or down the ranks and up again, so that rank 0 holds both ends.

    Raises:
        ValueError: the stages cannot be shared out so.
    """
    if schedule in SINGLE + V_SHAPED:
        wanted = ranks if schedule in SINGLE else 2 * ranks
        if stages != wanted:
            raise ValueError(f"{stages} stages on {ranks} ranks: {schedule} takes {wanted}")
    elif stages % ranks or not stages:
        raise ValueError(f"{stages} stages on {ranks} ranks: {schedule} takes a multiple of {ranks}")
    return [rank, 2 * ranks - 1 - rank] if schedule in V_SHAPED else list(range(rank, stages, ranks))


def sequential(layers: Layers, device: torch.device) -> nn.Sequential:
    """The layers one after the other, on the device.

    Magnitudes keep whole numbers whole, and have a slope of 1 or -1 everywhere: no gradient fades with depth.
    """
    module = nn.Sequential()
    for weight, bias in layers:
        linear = nn.Linear(weight.shape[1], weight.shape[0], device=device, dtype=weight.dtype)
        linear.load_state_dict({"weight": weight, "bias": bias})
        module.extend([linear, nn.LeakyReLU(-1.0)])
    return module


class Saved:
    """A tensor that autograd keeps for the backward of one microbatch."""

    def __init__(self, tensor: torch.Tensor, stage: int, microbatch: int) -> None:
        self.tensor = tensor
        self.key = (stage, microbatch)


class Recorder:
    """What a rank does, in order, and for how many microbatches of a stage it keeps tensors at the same time.

    Operations are written as torch writes them: ``2F0`` is stage 2's forward of microbatch 0.
    """

    def __init__(self) -> None:
        self.ops: list[str] = []
        self.most_alive = 0
        self._saved: weakref.WeakSet[Saved] = weakref.WeakSet()

    def done(self, stage: int, kind: str, microbatch: int) -> None:
        """The operation has ended."""
        self.ops.append(f"{stage}{kind}{microbatch}")
        self.most_alive = max(self.most_alive, len({saved.key for saved in self._saved}))

    def saving(self, stage: int, microbatch: int) -> torch.autograd.graph.saved_tensors_hooks:
        """Within this context, what autograd saves counts as kept for the microbatch until autograd drops it."""

        def pack(tensor: torch.Tensor) -> Saved:
            saved = Saved(tensor, stage, microbatch)
            self._saved.add(saved)
            return saved

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor)


class RecordedStage(PipelineStage):
    """A stage that tells what it does; it does nothing else than other stages."""

    def __init__(self, *args: Any, recorder: Recorder) -> None:
        super().__init__(*args)
        self._recorder = recorder

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self._recorder.saving(self.stage_index, fwd_chunk_id):
            output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        self._recorder.done(self.stage_index, "F", fwd_chunk_id)
        return output

    def backward_one_chunk(  # type: ignore[override]  # passes on whatever else this torch calls it with
        self, bwd_chunk_id: int, *, full_backward: bool = True, **kwargs: Any
    ) -> None:
        super().backward_one_chunk(bwd_chunk_id, full_backward=full_backward, **kwargs)
        self._recorder.done(self.stage_index, "B" if full_backward else "I", bwd_chunk_id)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)
        self._recorder.done(self.stage_index, "W", bwd_chunk_id)


def train(
    ctx: Context,
    *,
    schedule: str,
    stages: list[Layers],
    x: torch.Tensor,
    target: torch.Tensor,
    microbatches: int,
    reduction: str,
    scale_grads: bool | None = None,
    learning_rate: float = 1.0,
    build: Build = sequential,
    recorder: Recorder | None = None,
) -> Step[Tensors]:
    """A rank runs its stages; its step returns their gradients, and parameters after stochastic gradient descent.

    The rank of the last stage returns output and losses as well.

    Args:
        ctx: the rank's context.
        schedule: a key of ``RUNNERS``.
        stages: the layers of all stages.
        x: input of the whole batch, which the first stage cuts into microbatches.
        target: what the last stage compares the output with.
        microbatches: how many; of one size.
        reduction: of the squared error over a microbatch, ``mean`` or ``sum``.
        scale_grads: divide the sum of the microbatches' gradients by their number. By default for ``mean``,
            where only that gives the gradient of the mean over the batch; for ``sum`` the sum is it.
        learning_rate: of the descent.
        build: makes a stage of its layers.
        recorder: is told what the rank does.
    """
    indices = placed(schedule, ctx.rank, ctx.world_size, len(stages))
    if len(x) % microbatches:
        raise ValueError(f"a batch of {len(x)} cannot be cut into {microbatches} microbatches of one size")
    modules = {index: build(stages[index], ctx.device) for index in indices}
    made = [
        PipelineStage(module, index, len(stages), ctx.device)
        if recorder is None
        else RecordedStage(module, index, len(stages), ctx.device, recorder=recorder)
        for index, module in modules.items()
    ]
    runner = RUNNERS[schedule](
        made[0] if schedule in SINGLE else made,
        microbatches,
        loss_fn=nn.MSELoss(reduction=reduction),
        scale_grads=reduction == "mean" if scale_grads is None else scale_grads,
    )
    parameters = {
        f"stage {index}.{name}": parameter
        for index, module in modules.items()
        for name, parameter in module.named_parameters()
    }
    optimizer = torch.optim.SGD(parameters.values(), lr=learning_rate)
    inputs = (x.to(ctx.device),) if 0 in modules else ()
    target = target.to(ctx.device)

    def step() -> Tensors:
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        last = {"target": target, "losses": losses} if len(stages) - 1 in modules else {}
        output = runner.step(*inputs, **last)
        results = {
            f"{name} gradient": value.grad.clone() for name, value in parameters.items() if value.grad is not None
        }
        optimizer.step()
        results |= {name: value.detach().clone() for name, value in parameters.items()}
        return results | {"output": output, "losses": torch.stack(losses)} if last else results

    return step


class Trace(NamedTuple):
    """What a rank's step returned, what it did, and how many microbatches of a stage it kept tensors for at most."""

    results: Tensors
    ops: list[str]
    most_alive: int


def train_recorded(ctx: Context, **kwargs: Any) -> Trace:
    """One step, and what the rank did in it."""
    recorder = Recorder()
    results = train(ctx, **kwargs, recorder=recorder)()
    return Trace(results, recorder.ops, recorder.most_alive)


def train_twice(ctx: Context, **kwargs: Any) -> tuple[Tensors, Tensors]:
    """What the first step returns, which also exchanges shapes between the stages, and what the second does."""
    step = train(ctx, **kwargs)
    return step(), step()
