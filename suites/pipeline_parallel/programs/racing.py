"""Training steps of one model under every schedule: for timing, and for the time in which a rank waits.

p ranks. The model shifts its input, so that the first block, too, has an input with a gradient. Each block adds to its
own input ``down(gelu(up(x)))``: D features a row, H hidden features. A microbatch has T rows. A step is forward and
backward of all microbatches. The optimizer is left out: it waits for no other rank.

A model of its own: what is checked elsewhere is small and returns everything, and this one fills a GPU and returns one
small number, so that nothing else is timed. ``test_racing.py`` compares each way with one device.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.nn import functional

from pytest_gpuperf import Context, Infeasible
from suites.pipeline_parallel.programs.stages import RUNNERS, SINGLE, cannot_run, placed
from suites.shared.step import Step
from suites.shared.training import squared_norm

X_SEED, TARGET_SEED = 1, 2
"""Added to the model's seed, of the batch; weights begin at 3."""
WARM_UPS = 2
HELD = 32
"""Products of 8192 x 8192 in bfloat16, 1.5 ms each on an H200: so long the device is busy while the host launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model, and the batch of a step."""

    blocks: int
    """The blocks of all ranks together."""
    width: int
    hidden: int
    microbatches: int
    rows: int
    """The rows of a microbatch."""
    dtype: torch.dtype
    seed: int

    @property
    def block_bytes(self) -> int:
        """Bytes of a block's weights."""
        return 2 * self.width * self.hidden * self.dtype.itemsize

    @property
    def saved_bytes(self) -> int:
        """What a block's forward saves of a microbatch: its input, and the hidden features before and after GELU."""
        return self.rows * (self.width + 2 * self.hidden) * self.dtype.itemsize

    @property
    def flop(self) -> float:
        """FLOP of a step on all ranks together: 2 for each weight and row in the forward, 4 in the backward."""
        return 6.0 * self.blocks * 2 * self.width * self.hidden * self.rows * self.microbatches

    def block(self, index: int, device: torch.device) -> Block:
        """Block ``index`` of the whole model; alike wherever it is drawn on such a device."""
        with device:
            block = Block(self.width, self.hidden).to(self.dtype)
        generator = torch.Generator(device).manual_seed(self.seed + 3 + index)
        with torch.no_grad():
            for weight in block.parameters():
                weight.normal_(std=weight.shape[1] ** -0.5, generator=generator)
        return block

    def entry(self, device: torch.device) -> EntryBlock:
        """What comes before the first block."""
        with device:
            return EntryBlock(self.width).to(self.dtype)

    def batch(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """The first stage's input, and what the last stage's output is compared with."""
        shape = (self.microbatches * self.rows, self.width)
        x, target = (
            torch.randn(shape, device=device, generator=torch.Generator(device).manual_seed(self.seed + seed))
            for seed in (X_SEED, TARGET_SEED)
        )
        return x.to(self.dtype), target.to(self.dtype)


class EntryBlock(nn.Module):
    """A shift that is learned: without it the first block would compute no gradient of its input, and so do less."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.shift


class Block(nn.Module):
    """A feed-forward layer beside its input."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = x + self.down(functional.gelu(self.up(x)))
        return output


def squared_error(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The mean over a microbatch, in float32 if the numbers have 16 bits."""
    exact = torch.promote_types(output.dtype, torch.float32)
    return functional.mse_loss(output.to(exact), target.to(exact))


class Pipeline:
    """A rank's stages and the schedule that runs them.

    Args:
        ctx: the rank's context.
        schedule: a key of ``RUNNERS``.
        model: what is trained.
        stage: makes a stage; called as ``PipelineStage`` is.

    Raises:
        Infeasible: the schedule, the ranks or the blocks do not allow it.
    """

    def __init__(
        self,
        ctx: Context,
        schedule: str,
        model: Model,
        stage: Callable[..., PipelineStage] = PipelineStage,
    ) -> None:
        if reason := cannot_run(schedule, ctx.backend):
            raise Infeasible(reason)
        stages = stages_of(schedule, ctx.world_size)
        if model.blocks % stages:
            raise Infeasible(f"{model.blocks} blocks make no {stages} equal stages")
        each = model.blocks // stages
        indices = placed(schedule, ctx.rank, ctx.world_size, stages)
        modules = {
            index: nn.Sequential(*(model.block(index * each + place, ctx.device) for place in range(each)))
            for index in indices
        }
        if 0 in modules:
            modules[0].insert(0, model.entry(ctx.device))
        made = [stage(module, index, stages, ctx.device) for index, module in modules.items()]
        count = model.microbatches
        try:
            # The loss is scaled in place of the gradients, which would have to be read and written once more.
            self._runner = RUNNERS[schedule](
                made[0] if schedule in SINGLE else made,
                count,
                loss_fn=lambda output, target: squared_error(output, target) / count,
                scale_grads=False,
            )
        except ValueError as error:  # of so many microbatches
            raise Infeasible(str(error)) from error
        x, target = model.batch(ctx.device)
        self._inputs = (x,) if 0 in modules else ()
        self._target = target if stages - 1 in modules else None
        self.parameters = [parameter for module in modules.values() for parameter in module.parameters()]

    def run(self) -> list[torch.Tensor]:
        """Forward and backward of all microbatches; returns their shares of the loss on the rank of the last stage."""
        for parameter in self.parameters:
            parameter.grad = None
        losses: list[torch.Tensor] = []
        last = {} if self._target is None else {"target": self._target, "losses": losses}
        self._runner.step(*self._inputs, **last)
        return losses


def stages_of(schedule: str, ranks: int) -> int:
    """How many stages a schedule cuts the model into: one a rank, or two."""
    return ranks if schedule in SINGLE else 2 * ranks


def train(ctx: Context, *, schedule: str, model: Model) -> Step[torch.Tensor]:
    """A step returns, on every rank, the mean loss of all microbatches and the norm of all gradients."""
    pipeline = Pipeline(ctx, schedule, model)

    def step() -> torch.Tensor:
        losses = pipeline.run()
        exact = torch.promote_types(model.dtype, torch.float32)
        together = torch.zeros(2, dtype=exact, device=ctx.device)
        if losses:
            together[0] = torch.stack(losses).sum()
        together[1] = squared_norm([value.grad for value in pipeline.parameters if value.grad is not None])
        dist.all_reduce(together)  # one message for both numbers
        return torch.stack([together[0], together[1].sqrt()])

    return step


@functools.cache  # a rank asks before and after each schedule
def whole_loss(model: Model, device: torch.device) -> torch.Tensor:
    """The mean loss of the whole model, block after block on one device, a microbatch at a time."""
    x, target = model.batch(device)
    hidden = list(x.split(model.rows))
    with torch.no_grad():
        for index in range(model.blocks):
            block = model.block(index, device)
            hidden = [block(microbatch) for microbatch in hidden]
        pairs = zip(hidden, target.split(model.rows), strict=True)
        return torch.stack([squared_error(*pair) for pair in pairs]).mean()


class Moment:
    """A moment of the device's stream; of a CPU, of its own time."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        if self._event is not None:
            self._event.record()
        self._seconds = time.perf_counter()

    def until(self, later: Moment) -> float:
        """Seconds from this moment to a later one, which the device has passed."""
        if self._event is None or later._event is None:
            return later._seconds - self._seconds
        return float(self._event.elapsed_time(later._event)) / 1e3


@dataclass(slots=True)
class Stopwatch:
    """The operations of a rank's stages, each with its two moments."""

    taken: list[tuple[int, str, Moment, Moment]] = field(default_factory=list)
    """Stage, kind as torch writes it (F, B, I, W), begin and end."""


class TimedStage(PipelineStage):
    """A stage that notes when its operations begin and end; what it waits for comes before their begin."""

    def __init__(self, *args: Any, stopwatch: Stopwatch) -> None:
        super().__init__(*args)
        self._stopwatch = stopwatch

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        begin = Moment(self.device)
        output = super().forward_one_chunk(*args, **kwargs)
        self._note("F", begin)
        return output

    def backward_one_chunk(  # type: ignore[override]  # passes on whatever else this torch calls it with
        self, bwd_chunk_id: int, *, full_backward: bool = True, **kwargs: Any
    ) -> None:
        begin = Moment(self.device)
        super().backward_one_chunk(bwd_chunk_id, full_backward=full_backward, **kwargs)
        self._note("B" if full_backward else "I", begin)

    def backward_weight_one_chunk(self, *args: Any, **kwargs: Any) -> None:
        begin = Moment(self.device)
        super().backward_weight_one_chunk(*args, **kwargs)
        self._note("W", begin)

    def _note(self, kind: str, begin: Moment) -> None:
        self._stopwatch.taken.append((self.stage_index, kind, begin, Moment(self.device)))


@dataclass(frozen=True, slots=True)
class RankTime:
    """A rank's part of one step, in seconds of its device."""

    span: float
    """From the release of all ranks to the end of this rank's work."""
    ops: list[tuple[int, str, float]]
    """Each operation's stage, kind and duration, in their order."""

    @property
    def busy(self) -> float:
        """In which the rank's stages computed."""
        return sum(seconds for _, _, seconds in self.ops)


def rank_times(ctx: Context, *, schedule: str, model: Model, steps: int) -> list[RankTime]:
    """What the rank's device does in each of so many steps, one by one.

    While the host launches a step the device is kept busy, so that no operation waits for the host.

    Raises:
        Infeasible: as ``Pipeline``.
    """
    stopwatch = Stopwatch()
    pipeline = Pipeline(ctx, schedule, model, lambda *args: TimedStage(*args, stopwatch=stopwatch))
    cuda = ctx.device.type == "cuda"
    filler = torch.zeros(8192 if cuda else 1, 8192, dtype=torch.bfloat16, device=ctx.device)
    token = torch.zeros(1, device=ctx.device)
    found = []
    for number in range(WARM_UPS + steps):
        stopwatch.taken.clear()
        for _ in range(HELD if cuda and number >= WARM_UPS else 0):
            torch.mm(filler, filler)
        dist.all_reduce(token)  # no rank leaves it before all have come
        begin = Moment(ctx.device)
        pipeline.run()
        end = Moment(ctx.device)
        if cuda:
            torch.cuda.synchronize()
        if number >= WARM_UPS:
            ops = [(stage, kind, one.until(other)) for stage, kind, one, other in stopwatch.taken]
            found.append(RankTime(begin.until(end), ops))
    return found
