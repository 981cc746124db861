"""What torch remembers of process groups that are closed. Runs in rank processes.

DTensor keeps the sharding of every operation that it has met, and with it the mesh that it met it on. Two meshes
of the same ranks and names are equal to it whatever groups they have (DeviceMesh.__eq__), so that a test would be
handed an earlier test's mesh, whose groups' names now belong to nobody, or to other ranks. And a mesh holds its groups:
gloo's end with their last reference, and until then each has three threads, one of which wakes every 10 ms.

It keeps them by thread. Backward passes on a GPU run on a thread of autograd's own, one for each GPU.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from pytest_gpuperf.torch_internals import forget_sharding


def forget_meshes(device: torch.device) -> None:
    """Has DTensor find out anew what it kept with a mesh; if nobody has loaded it, it kept nothing.

    Args:
        device: the rank's own, on whose thread of autograd it forgets as well.
    """
    if "torch.distributed.tensor" not in sys.modules:
        return
    forget_sharding()
    if device.type == "cuda":
        _ForgetInBackward.apply(torch.ones((), device=device, requires_grad=True)).backward()  # type: ignore[no-untyped-call]


class _ForgetInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        forget_sharding()
        return gradients[0]
