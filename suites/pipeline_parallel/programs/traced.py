"""Models that torch cuts by itself: stages share a weight, hand on two tensors, and hand on past the next one."""

from __future__ import annotations

import warnings
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import Pipe, SplitPoint, pipe_split, pipeline
from torch.nn import functional

from pytest_gpuperf import Context
from suites.pipeline_parallel.programs.stages import RUNNERS
from suites.pipeline_parallel.programs.training import linear_loss
from suites.shared.step import Tensors, gradient_of

Cut = Literal["in the code", "before layers", "around a layer"]
SPECS: dict[str, dict[str, SplitPoint]] = {
    "before layers": {"second": SplitPoint.BEGINNING, "third": SplitPoint.BEGINNING},
    "around a layer": {"first": SplitPoint.END, "third": SplitPoint.BEGINNING},
}


class Product(nn.Module):
    """The magnitudes of a product with a weight."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product's magnitudes."""
        output: torch.Tensor = (x @ self.weight).abs()
        return output


class Crossing(nn.Module):
    """Three layers, between which two tensors go from stage to stage; the first and the last use one scale."""

    offset: torch.Tensor

    def __init__(self, weights: Tensors, *, splits: bool) -> None:
        super().__init__()
        self.first, self.second = Product(weights["first.weight"]), Product(weights["second.weight"])
        self.third = Product(weights["third.weight"])
        self.scale = nn.Parameter(weights["scale"])
        self.register_buffer("offset", weights["offset"])
        self._splits = splits

    def forward(self, x: torch.Tensor, *, factor: torch.Tensor) -> torch.Tensor:
        """The output of as many rows."""
        first = self.first(x * factor)
        scaled = first * self.scale
        if self._splits:
            pipe_split()
        second = self.second(scaled) + self.offset * first
        if self._splits:
            pipe_split()
        output: torch.Tensor = self.third(second) * self.scale + 2 * second
        return output


def piped(cut: Cut, weights: Tensors, x: torch.Tensor, factor: torch.Tensor) -> Pipe:
    """The model as torch cuts it, traced by the inputs of one microbatch."""
    model = Crossing(weights, splits=cut == "in the code")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own older names
        return pipeline(model, (x,), {"factor": factor}, split_spec=SPECS.get(cut))


def train_traced(
    ctx: Context,
    *,
    schedule: str,
    cut: Cut,
    weights: Tensors,
    x: torch.Tensor,
    factor: torch.Tensor,
    target: torch.Tensor,
    microbatches: int,
) -> Tensors:
    """Two steps, whose gradients add up; returns them by name, and on the last rank the last output as well.

    Args:
        ctx: the rank's context, one of three.
        schedule: a key of ``RUNNERS`` with one stage a rank.
        cut: where the model is cut.
        weights: of the model, and its buffer.
        x: the whole batch.
        factor: a keyword argument of as many rows.
        target: what the loss multiplies the output with.
        microbatches: how many the batch is cut into.
    """
    rows = len(x) // microbatches
    pipe = piped(cut, {name: value.clone() for name, value in weights.items()}, x[:rows], factor[:rows])
    stage = pipe.build_stage(ctx.rank, ctx.device)
    runner = RUNNERS[schedule](stage, microbatches, loss_fn=linear_loss, scale_grads=False)
    found: Tensors = {}
    for step in (1, 2):
        if ctx.rank == 0:
            runner.step(step * x.to(ctx.device), factor=factor.to(ctx.device))
        elif ctx.rank == ctx.world_size - 1:
            found["output"] = runner.step(target=target.to(ctx.device)).detach()
        else:
            runner.step()
    return found | {name: gradient_of(value) for name, value in stage.submod.named_parameters()}


class Skipping(nn.Module):
    """Three layers in a module, of which the last one takes something of the first; tokens go to both others."""

    def __init__(self, weights: Tensors) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({name: Product(weights[name]) for name in ("first", "second", "third")})
        self.table = nn.Parameter(weights["table"])

    def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """The output of as many rows."""
        first = self.layers["first"](x)  # torch takes what is used first for the first argument
        later = (tokens + 1) % len(self.table)
        kept = 2 * first + 1
        second = self.layers["second"](first) + functional.embedding(later, self.table)
        output: torch.Tensor = self.layers["third"](second) * (later[:, None] + 1) + kept
        return output


def train_skipping(
    ctx: Context, *, weights: Tensors, x: torch.Tensor, tokens: torch.Tensor, target: torch.Tensor, microbatches: int
) -> Tensors:
    """An evaluation, two steps, and another evaluation on all ranks but the first; gradients, and the output of each.

    Args:
        ctx: the rank's context, one of four.
        weights: of the model.
        x: the whole batch.
        tokens: a whole number for each of its rows.
        target: what the loss multiplies the output with.
        microbatches: how many the batch is cut into.
    """
    ranks = list(range(1, ctx.world_size))
    group = dist.new_group(ranks)
    if ctx.rank == 0:
        return {}
    place, last = ctx.rank - 1, ctx.rank == ctx.world_size - 1
    rows = len(x) // microbatches
    spec = {"layers.second": SplitPoint.BEGINNING, "layers.third": SplitPoint.BEGINNING}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own older names
        model = Skipping({name: value.clone() for name, value in weights.items()})
        pipe = pipeline(model, (x[:rows], tokens[:rows]), split_spec=spec)
    stage = pipe.build_stage(place, ctx.device, group)
    runner = RUNNERS["GPipe"](stage, microbatches, loss_fn=linear_loss, scale_grads=False)
    found: Tensors = {}
    for times, way in ((3, runner.eval), (1, runner.step), (2, runner.step), (4, runner.eval)):
        inputs = (times * x.to(ctx.device), tokens.to(ctx.device)) if place == 0 else ()
        output = way(*inputs, **({"target": target.to(ctx.device)} if last else {}))
        if last:
            found[f"output {times}"] = output.detach()
    return found | {name: gradient_of(value) for name, value in stage.submod.named_parameters()}
