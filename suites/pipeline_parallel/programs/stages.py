"""Stages of a model, the schedules of torch.distributed.pipelining that run them, and a record of what they do.

A stage is a list of layers, a layer a pair of weight and bias; each layer is linear, and then the magnitude.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

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
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

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
SPLITTING = ("InterleavedZeroBubble", *V_SHAPED)
"""They compute the input's gradient in one operation, and the weights' in a later one."""


def cannot_run(schedule: str, backend: str, stage: type = PipelineStage) -> str | None:
    """Why the schedule cannot run on the backend with such stages, by default this torch's; None if it can.

    Before its first step torch 2.10 and 2.11 have every stage send to its neighbours, also where those are on the same
    rank, as in V-shaped schedules. gloo connects no rank to itself. Since 2.12 they vote instead.
    """
    if backend == "gloo" and schedule in V_SHAPED and not hasattr(stage, "_warmup_forward_vote"):
        return f"{schedule} of torch {torch.__version__} sends from a rank to itself, which gloo cannot; 2.12 does not"
    return None


def votes() -> bool:
    """Whether stages of this torch vote on what they know before the first step, as they do since 2.12."""
    return hasattr(PipelineStage, "_warmup_forward_vote")


def miscounts(schedule: str) -> str | None:
    """Why the schedule gives weights that a stage uses twice a wrong gradient with this torch; None if it does not.

    Schedules that split a backward go back from each use of a weight. Until torch 2.11 the way back from the later use
    went through the earlier one again, which counted twice (pytorch/pytorch#180952). The other schedules are right.
    """
    if schedule not in SPLITTING or _counts_each_use_once():
        return None
    return f"{schedule} of torch {torch.__version__} counts a weight's first use twice (pytorch/pytorch#180952)"


def _counts_each_use_once() -> bool:
    x, weight = torch.tensor(3.0, requires_grad=True), nn.Parameter(torch.tensor(2.0))
    _, groups = stage_backward_input([x * weight * weight], None, [x], iter([weight]))
    stage_backward_weight(iter([weight]), groups)
    assert weight.grad is not None
    return weight.grad.item() == 2 * 3.0 * 2.0


def evaluates(schedule: str) -> bool:
    """Whether torch can run it without backwards: it hands gradients over within a rank even then."""
    return schedule not in V_SHAPED


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
        self.most_left = 0
        """Microbatches of a stage whose output was still alive after their backward, at most."""
        self._saved: weakref.WeakSet[Saved] = weakref.WeakSet()
        self._outputs: dict[tuple[int, int], weakref.ref[torch.UntypedStorage]] = {}
        self._backward_done: set[tuple[int, int]] = set()

    def sends(self, stage: int, microbatch: int, output: torch.Tensor) -> None:
        """What the stage hands on; nobody needs it after its backward."""
        self._outputs[stage, microbatch] = weakref.ref(output.untyped_storage())

    def done(self, stage: int, kind: str, microbatch: int) -> None:
        """The operation has ended."""
        self.ops.append(f"{stage}{kind}{microbatch}")
        if kind in ("B", "W"):  # all of a backward, or the last part of one in two
            self._backward_done.add((stage, microbatch))
        left = [key for key in self._backward_done if key in self._outputs and self._outputs[key]() is not None]
        self.most_left = max(self.most_left, len(left))
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
        if not self.is_last:  # the last stage's are returned at the end, all of them
            self._recorder.sends(self.stage_index, fwd_chunk_id, output)
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
