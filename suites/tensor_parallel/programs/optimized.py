"""Steps of optimizers whose parameters are DTensors of several layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from pytest_gpuperf import Context
from suites.shared.sharding import local_tensor

Parameters = list[nn.Parameter]

OPTIMIZERS: dict[str, Callable[[Parameters], torch.optim.Optimizer]] = {
    "SGD": lambda own: torch.optim.SGD(own, lr=0.5, momentum=0.5, nesterov=True, weight_decay=0.25),
    "SGD that damps": lambda own: torch.optim.SGD(own, lr=0.5, momentum=0.5, dampening=0.5, maximize=True),
    "Adam": lambda own: torch.optim.Adam(own, lr=0.1, amsgrad=True, weight_decay=0.25),
    "Adam, tensor by tensor": lambda own: torch.optim.Adam(own, lr=0.1, foreach=False),
    "Adam of lists": lambda own: torch.optim.Adam(own, lr=0.1, foreach=True, maximize=True),
    "AdamW": lambda own: torch.optim.AdamW(own, lr=0.1, foreach=True, weight_decay=0.5, betas=(0.5, 0.75)),
    "AdamW of two groups": lambda own: torch.optim.AdamW(
        [{"params": own[:2], "lr": 0.5}, {"params": own[2:], "weight_decay": 0.0}], lr=0.1, foreach=False
    ),
    "AdamW in one kernel": lambda own: torch.optim.AdamW(own, lr=0.1, fused=True, amsgrad=True),
    "RMSprop": lambda own: torch.optim.RMSprop(own, lr=0.1, momentum=0.5, centered=True),
    "Adagrad": lambda own: torch.optim.Adagrad(own, lr=0.1, lr_decay=0.5),
}

LAYOUTS: Sequence[tuple[tuple[int, ...], Placement, Placement]] = (
    ((5, 3), Shard(0), Shard(0)),
    ((4, 7), Shard(1), Replicate()),
    ((2, 4), Shard(0), Shard(0)),
    ((3,), Replicate(), Partial()),
)
"""Shape, layout and gradient's layout of each parameter. Some ranks have no row of the third one."""


def optimized(
    ctx: Context, *, values: list[torch.Tensor], grads: list[list[torch.Tensor]]
) -> dict[str, list[torch.Tensor]]:
    """The whole parameters after a step with each of the gradients, by optimizer.

    Args:
        ctx: the rank's context.
        values: of the parameters, whole.
        grads: of each step, of each parameter, whole.
    """
    mesh = ctx.mesh((ctx.world_size,))

    def laid_out(whole: torch.Tensor, placement: Placement) -> DTensor:
        return distribute_tensor(whole.to(ctx.device).clone(), mesh, [placement], src_data_rank=None)

    told = {}
    for name, optimizer_of in OPTIMIZERS.items():
        own = [nn.Parameter(laid_out(value, place)) for value, (_, place, _) in zip(values, LAYOUTS, strict=True)]
        optimizer = optimizer_of(own)
        for step in grads:
            for parameter, grad, (_, _, of_grad) in zip(own, step, LAYOUTS, strict=True):
                parameter.grad = laid_out(grad, of_grad)
            optimizer.step()
        told[name] = [local_tensor(_whole(parameter)) for parameter in own]
    return told


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    assert isinstance(tensor, DTensor)
    whole: torch.Tensor = tensor.full_tensor()
    return whole.detach()
