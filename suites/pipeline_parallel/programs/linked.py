"""Stages that have more: a second tensor to pass on, a keyword argument, weights used twice, buffers, and dropout.

A stage gets the output of the stage before and that one's input, which it subtracts from its own output.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from pytest_gpuperf import Context
from suites.pipeline_parallel.programs.stages import Layers, sequential
from suites.pipeline_parallel.programs.training import Minibatch, Trainer
from suites.shared.step import Tensors

DROPOUT = 0.5


class Linked(nn.Module):
    """A stage of layers of one width."""

    seen: torch.Tensor
    rows: torch.Tensor

    def __init__(self, layers: Layers, device: torch.device, *, last: bool) -> None:
        super().__init__()
        self.layers = sequential(layers, device)
        self.last = last
        self.masks: list[torch.Tensor] = []
        """What dropout has multiplied with, by call."""
        weight, _ = layers[0]
        self.register_buffer("seen", torch.zeros(weight.shape[1], dtype=weight.dtype, device=device))
        self.register_buffer("rows", torch.zeros((), dtype=torch.int64, device=device))

    def forward(self, x: torch.Tensor, before: torch.Tensor | None = None, *, gate: torch.Tensor) -> Any:
        """The output, and the input for the next stage; of the last stage the output alone."""
        mask = functional.dropout(torch.ones_like(x), DROPOUT)
        self.masks.append(mask.detach())
        self.seen += x.detach().sum(0)
        self.rows += len(x)
        output = self.layers(self.layers(x * mask * gate))
        if before is not None:
            output = output - before
        return output if self.last else (output, x * gate)


def train_linked(ctx: Context, *, stages: list[Layers], batches: list[Minibatch], **kwargs: Any) -> list[Tensors]:
    """A step with each batch; returns, beside what steps return, buffers and dropout masks of the rank's stages."""
    # By default all processes begin with one seed, and ranks would drop the same elements.
    torch.manual_seed(ctx.rank)
    final = stages[-1]
    rows = len(batches[0].x) // kwargs["microbatches"]

    def passed_on(stage: int) -> tuple[torch.Tensor, ...]:
        """What a stage gets: the input of the first needs no gradient, nor does it where the first passes it on."""
        leaf = torch.zeros(rows, 2, dtype=batches[0].x.dtype, device=ctx.device)
        needing = leaf.clone().requires_grad_()
        if stage == 0:
            return (leaf,)
        return (needing,) if stage == len(stages) else (needing, leaf if stage == 1 else needing)

    trainer = Trainer(
        ctx,
        stages=stages,
        build=lambda layers, device: Linked(layers, device, last=layers is final),
        examples=lambda index: (passed_on(index), passed_on(index + 1)),
        **kwargs,
    )
    results = []
    for batch in batches:
        step = {name.replace(".layers.", "."): tensor for name, tensor in trainer.step(batch).items()}
        for index, module in trainer.modules.items():
            assert isinstance(module, Linked)
            step[f"stage {index}.mask"] = torch.cat(module.masks[-trainer.microbatches :])
            step |= {f"stage {index}.{name}": buffer.clone() for name, buffer in module.named_buffers()}
        results.append(step)
    return results
