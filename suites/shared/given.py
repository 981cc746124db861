"""What the whole layer is given in one step, and how its split parameters get those of the next one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from suites.shared.step import Tensors


@dataclass(frozen=True, slots=True)
class Given:
    """What the whole layer is given in one step."""

    parameters: Tensors
    x: torch.Tensor
    grad: torch.Tensor
    """Of the output."""


@torch.no_grad()
def overwrite(module: nn.Module, parameters: Tensors) -> None:
    """Gives a split module other values in place, as an optimizer would: exactly, and without messages."""
    for name, value in module.named_parameters():
        assert isinstance(value, DTensor)
        new = parameters[name].to(value.device)
        value.copy_(distribute_tensor(new, value.device_mesh, value.placements, src_data_rank=None))
