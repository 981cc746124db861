"""Training steps of a model cut into stages, by torch.distributed.pipelining."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage

from pytest_gpuperf import Context
from suites.pipeline_parallel.programs.stages import (
    RUNNERS,
    SINGLE,
    Build,
    Layers,
    RecordedStage,
    Recorder,
    evaluates,
    placed,
    sequential,
)
from suites.shared.step import Step, Tensors, gradient_of


class Minibatch(NamedTuple):
    """What one call of a schedule computes with: cut into microbatches."""

    x: torch.Tensor
    """The first stage's input."""
    target: torch.Tensor
    """What the last stage compares its output with."""
    gate: torch.Tensor | None = None
    """A keyword argument of every stage, of as many rows as the input; None if the stages take none."""


def linear_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A sum whose gradient is the target: it is as exact as the target is, whatever the size of the output."""
    return (output * target).sum()


LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mean": nn.MSELoss(reduction="mean"),
    "sum": nn.MSELoss(reduction="sum"),
    "linear": linear_loss,
}


def step_twice(ctx: Context, runner: Any, x: torch.Tensor, target: torch.Tensor, *, first: bool, last: bool) -> None:
    """Runs two steps, whose gradients add up; the second one has the double of the batch.

    Args:
        ctx: the rank's context.
        runner: a schedule that returns no losses.
        x: the whole batch.
        target: what the loss multiplies the output with.
        first: whether the rank has the first stage.
        last: whether it has the last one.
    """
    for step in (1, 2):
        inputs = (step * x.to(ctx.device),) if first else ()
        runner.step(*inputs, **({"target": target.to(ctx.device)} if last else {}))


def clip(parameters: Iterable[nn.Parameter], max_norm: float) -> torch.Tensor:
    """Scales all gradients of all ranks down to a norm of ``max_norm`` together; returns the norm that they had."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    exact = torch.promote_types(gradients[0].dtype, torch.float32)  # 16 bits hold few squares, and fewer sums of them
    total = torch.stack([gradient.to(exact).square().sum() for gradient in gradients]).sum()
    dist.all_reduce(total)
    norm = total.sqrt()
    for gradient in gradients:
        gradient.mul_((max_norm / norm).clamp(max=1.0))
    return norm


class Signs(torch.optim.Optimizer):
    """signSGD (arXiv 1802.04434): whole numbers that move by whole numbers stay exact over many steps."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]  # there is none
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad.sign())


class Trainer:
    """A rank's stages, and the schedule that runs them.

    Args:
        ctx: the rank's context.
        schedule: a key of ``RUNNERS``.
        stages: the layers of all stages.
        microbatches: how many a batch is cut into; of one size.
        reduction: of the loss over a microbatch, a key of ``LOSSES``.
        scale_grads: divide the sum of the microbatches' gradients by their number. By default for ``mean``,
            where only that gives the gradient of the mean over the batch; for sums the sum is it.
        learning_rate: of the descent; None to move by the gradients' signs.
        build: makes a stage of its layers.
        recorder: is told what the rank does.
        examples: of a stage's inputs and outputs, for stages that must not run before the first step: without examples
            torch calls every stage once with any numbers to see shapes, and leaves those numbers in its buffers.
    """

    def __init__(
        self,
        ctx: Context,
        *,
        schedule: str,
        stages: list[Layers],
        microbatches: int,
        reduction: str,
        scale_grads: bool | None = None,
        learning_rate: float | None = 1.0,
        build: Build = sequential,
        recorder: Recorder | None = None,
        examples: Callable[[int], tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]] | None = None,
    ) -> None:
        self.device = ctx.device
        self.microbatches = microbatches
        indices = placed(schedule, ctx.rank, ctx.world_size, len(stages))
        self.modules = {index: build(stages[index], ctx.device) for index in indices}
        made = [
            PipelineStage(module, index, len(stages), ctx.device, *(() if examples is None else examples(index)))
            if recorder is None
            else RecordedStage(module, index, len(stages), ctx.device, recorder=recorder)
            for index, module in self.modules.items()
        ]
        self.runner = RUNNERS[schedule](
            made[0] if schedule in SINGLE else made,
            microbatches,
            loss_fn=LOSSES[reduction],
            scale_grads=reduction == "mean" if scale_grads is None else scale_grads,
        )
        self.parameters = {
            f"stage {index}.{name}": parameter
            for index, module in self.modules.items()
            for name, parameter in module.named_parameters()
        }
        given = list(self.parameters.values())
        self.optimizer = Signs(given) if learning_rate is None else torch.optim.SGD(given, lr=learning_rate)
        self.first, self.last = 0 in self.modules, len(stages) - 1 in self.modules

    def called(self, batch: Minibatch) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
        """What the rank's schedule is called with, beside the target."""
        gate = {} if batch.gate is None else {"gate": batch.gate.to(self.device)}
        return (batch.x.to(self.device),) if self.first else (), gate

    def backward(self, batch: Minibatch) -> Tensors:
        """Adds to the gradients; returns output and losses on the rank of the last stage."""
        if len(batch.x) % self.microbatches:
            raise ValueError(
                f"a batch of {len(batch.x)} cannot be cut into {self.microbatches} microbatches of one size"
            )
        losses: list[torch.Tensor] = []
        inputs, gate = self.called(batch)
        last = {"target": batch.target.to(self.device), "losses": losses} if self.last else {}
        output = self.runner.step(*inputs, **gate, **last)
        return {"output": output, "losses": torch.stack(losses)} if self.last else {}

    def update(self) -> Tensors:
        """Moves the parameters; returns the gradients and where the parameters are now."""
        results = {
            f"{name} gradient": value.grad.clone() for name, value in self.parameters.items() if value.grad is not None
        }
        self.optimizer.step()
        return results | {name: value.detach().clone() for name, value in self.parameters.items()}

    def step(self, batch: Minibatch) -> Tensors:
        """A step of training."""
        self.optimizer.zero_grad()
        last = self.backward(batch)
        return self.update() | last

    def evaluate(self, batch: Minibatch) -> Tensors:
        """The output on the rank of the last stage, without a backward."""
        inputs, gate = self.called(batch)
        last = {"target": batch.target.to(self.device)} if self.last else {}
        with torch.no_grad():
            output = self.runner.eval(*inputs, **gate, **last)
        return {"evaluation": output} if self.last else {}


def train(ctx: Context, *, x: torch.Tensor, target: torch.Tensor, **kwargs: Any) -> Step[Tensors]:
    """A rank runs its stages; its step returns their gradients, and parameters after stochastic gradient descent.

    The rank of the last stage returns output and losses as well. What it takes is ``Trainer``'s.
    """
    trainer, batch = Trainer(ctx, **kwargs), Minibatch(x, target)
    return lambda: trainer.step(batch)


def train_on(ctx: Context, *, batches: list[Minibatch], **kwargs: Any) -> list[Tensors]:
    """A step with each batch, and after it an evaluation of the next one, of schedules that can."""
    trainer = Trainer(ctx, **kwargs)
    results = []
    for batch, after in zip(batches, [*batches[1:], batches[0]], strict=True):
        step = trainer.step(batch)
        results.append(step | trainer.evaluate(after) if evaluates(kwargs["schedule"]) else step)
    return results


def accumulate(
    ctx: Context, *, batches: list[Minibatch], microbatches: int, max_norm: float | None = None, **kwargs: Any
) -> Tensors:
    """One step with the mean of all batches' gradients, each batch cut into microbatches and run by itself.

    Losses are means. torch divides what it finds in the gradients, those of earlier batches too: it is told not to.
    """
    trainer = Trainer(ctx, microbatches=microbatches, reduction="mean", scale_grads=False, **kwargs)
    lasts = [trainer.backward(batch) for batch in batches]
    for parameter in trainer.parameters.values():
        gradient_of(parameter).div_(microbatches * len(batches))
    norm = {} if max_norm is None else {"norm": clip(trainer.parameters.values(), max_norm)}
    return trainer.update() | norm | {name: torch.cat([last[name] for last in lasts]) for name in lasts[0]}


class Trace(NamedTuple):
    """What a rank's step returned, what it did, and how many microbatches of a stage it kept tensors for at most.

    And of how many it still had the output after their backward.
    """

    results: Tensors
    ops: list[str]
    most_alive: int
    most_left: int


def train_recorded(ctx: Context, **kwargs: Any) -> Trace:
    """One step, and what the rank did in it."""
    recorder = Recorder()
    results = train(ctx, **kwargs, recorder=recorder)()
    return Trace(results, recorder.ops, recorder.most_alive, recorder.most_left)


def train_twice(ctx: Context, **kwargs: Any) -> tuple[Tensors, Tensors]:
    """What the first step returns, which also exchanges shapes between the stages, and what the second does."""
    step = train(ctx, **kwargs)
    return step(), step()
