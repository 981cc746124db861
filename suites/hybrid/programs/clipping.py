"""The norm of all gradients of a mesh, of which its ranks hold parts or copies, each on another mesh perhaps.

torch's ``clip_grad_norm_`` does not bring together tensors of meshes of one and two axes.
"""

from __future__ import annotations

import math

import torch
from torch.distributed.tensor import DTensor

from suites.shared.training import norms


def squared(gradients: list[torch.Tensor], parts: torch.Tensor, of_stage: int) -> torch.Tensor:
    """The rank's share of the squared norm of its stage's gradients, of which copies on several ranks count once.

    The sum over all ranks is the squared norm of all stages' gradients; in float32 at least.

    Args:
        gradients: those that the rank holds, or parts of them.
        parts: in how many parts each gradient is, by ``parts_of``.
        of_stage: ranks of a pipeline's stage.
    """
    own = norms([local(gradient) for gradient in gradients])
    # A gradient in h parts on n ranks is there n / h times.
    return (own.square() * parts / of_stage).sum()


def parts_of(gradients: list[torch.Tensor]) -> torch.Tensor:
    """In how many parts each gradient is on the ranks of its stage."""
    parts = [
        math.prod(
            size
            for size, placement in zip(gradient.device_mesh.shape, gradient.placements, strict=True)
            if not placement.is_replicate()  # is_shard() is False where two axes split one dimension
        )
        if isinstance(gradient, DTensor)
        else 1
        for gradient in gradients
    ]
    return torch.tensor(parts, device=gradients[0].device)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What the rank holds of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
