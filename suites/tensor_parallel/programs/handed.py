"""Styles whose modules hand DTensors on to each other, as the plan of a whole module, and embeddings with padding."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInputOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from pytest_gpuperf import Context
from suites.shared.sharding import local_tensor
from suites.shared.step import Tensors, gradient_of
from suites.tensor_parallel.programs.linear_layers import linear


class Scaled(nn.Module):
    """Each number times a weight, plus a bias: a norm that rounds nothing."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output of the size of the input, [B, S, W]."""
        return x * self.weight + self.bias


class Handing(nn.Module):
    """An embedding, an MLP between two scalings, and tokens by name.

    B batch, S tokens, V words, W width, H hidden.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor], padding: int) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(parameters["table"].clone(), freeze=False, padding_idx=padding)
        self.before, self.after = (
            Scaled(parameters[f"{name}"][0], parameters[name][1]) for name in ("before", "after")
        )
        self.up, self.down = (
            linear({"weight": parameters[f"{name}"], "bias": parameters[f"{name} bias"]}) for name in ("up", "down")
        )

    def forward(self, *, tokens: torch.Tensor) -> torch.Tensor:
        """Outputs, [B, S, W], of tokens, [B, S]."""
        output: torch.Tensor = self.after(self.down(self.up(self.before(self.table(tokens))).relu()))
        return output


def plan(desired: Placement) -> dict[str, ParallelStyle]:
    """Layers that take and give DTensors, and around them all what takes and gives local tensors.

    Args:
        desired: how outputs are laid out, which the last layer gives by batches.
    """
    return {
        "table": ColwiseParallel(output_layouts=Shard(1), use_local_output=False),
        "before": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        "after": SequenceParallel(sequence_dim=0),
        "": PrepareModuleInputOutput(
            input_kwarg_layouts={"tokens": Shard(0)},
            desired_input_kwarg_layouts={"tokens": Replicate()},
            output_layouts=Shard(0),
            desired_output_layouts=desired,
        ),
    }


def handed_on(
    ctx: Context,
    *,
    parameters: Tensors,
    padding: int,
    tokens: torch.Tensor,
    grad: torch.Tensor,
    whole: bool,
    distributed: bool,
) -> Tensors:
    """The rank's output, and the whole gradients of all parameters.

    Args:
        ctx: the rank's context.
        parameters: of ``Handing``, all of them.
        padding: the word that does not train.
        tokens: all of them, which are given by batches.
        grad: of the whole output.
        whole: whether all outputs come to each rank; otherwise those of some batches do.
        distributed: whether tokens are given as a DTensor.
    """
    mesh = ctx.mesh((ctx.world_size,))
    model = Handing({name: value.to(ctx.device) for name, value in parameters.items()}, padding)
    parallelize_module(model, mesh, plan(Replicate() if whole else Shard(0)))
    given = distribute_tensor(tokens.to(ctx.device), mesh, [Shard(0)], src_data_rank=None)
    output: torch.Tensor = model(tokens=given if distributed else given.to_local())
    own = grad if whole else grad.chunk(ctx.world_size)[ctx.rank]
    output.backward(own.to(ctx.device))
    gradients = {f"{name} gradient": _whole(gradient_of(value)) for name, value in model.named_parameters()}
    return {"output": local_tensor(output), **gradients}


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()
