"""Faults in one call: what its tensors hold is altered, before it is made or once it is done.

Runs in rank processes. The call itself is always made, with the same shapes on the same group, so that a fault leaves
no rank waiting.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pytest_gpuperf.features.mutating.faults import Family, Kind
from pytest_gpuperf.features.mutating.operators import Operator

KEEPS_OWN = frozenset({Kind.SKIPPED, Kind.TAIL})
"""Kinds that need what an output would be if nothing had been communicated."""
_TAIL = 8  # one of so many parts


def compute_own_result(
    operator: Operator, inputs: Sequence[torch.Tensor], out: torch.Tensor, index: int, rank: int, size: int
) -> torch.Tensor:
    """What an output would be if nothing had been communicated: of the rank's own input, or zeros if none fits.

    Args:
        operator: that was called.
        inputs: copies of what it read.
        out: the output.
        index: of the output among all.
        rank: in the group.
        size: of the group.
    """
    if operator.in_place and index < len(inputs):
        return inputs[index]
    own = inputs[min(index, len(inputs) - 1)] if inputs else None
    if own is None or own.dtype != out.dtype:
        return torch.zeros_like(out)
    if operator.family is Family.GATHER and out.numel() % max(1, own.numel()) == 0 and own.numel():
        return own.reshape(-1).repeat(out.numel() // own.numel()).view_as(out)
    if operator.family is Family.REDUCE:
        if own.numel() == out.numel() * size:
            return own.reshape(-1)[rank * out.numel() : (rank + 1) * out.numel()].view_as(out)
        mine = inputs[index * size + rank] if len(inputs) > index * size + rank else own
        return mine.view_as(out) if mine.numel() == out.numel() else torch.zeros_like(out)
    return own.view_as(out) if own.numel() == out.numel() else torch.zeros_like(out)


def swap(outputs: Sequence[torch.Tensor], size: int) -> None:
    """Puts each rank's part where the next rank's belongs."""
    if len(outputs) > 1 and len({tensor.shape for tensor in outputs}) == 1:
        held = [tensor.clone() for tensor in outputs]
        for index, tensor in enumerate(outputs):
            tensor.copy_(held[(index + 1) % len(held)])
        return
    for tensor in outputs:
        if tensor.dim() and tensor.shape[0] % size == 0:
            tensor.copy_(tensor.roll(tensor.shape[0] // size, 0))


def alter(tensor: torch.Tensor, kind: Kind, size: int, untouched: torch.Tensor, previous: torch.Tensor | None) -> None:
    """Alters what one tensor holds.

    Args:
        tensor: in place.
        kind: how.
        size: of the group.
        untouched: what it would hold if nothing had been communicated, for kinds of ``KEEPS_OWN``.
        previous: what it held after the call before with such a tensor; None without one.
    """
    match kind:
        case Kind.SKIPPED:
            tensor.copy_(untouched)
        case Kind.STALE if previous is not None:
            tensor.copy_(previous)
        case Kind.TAIL if tensor.numel():
            count = max(1, tensor.numel() // _TAIL)
            changed = tensor.flatten()  # a copy where the tensor has gaps
            changed[-count:] = untouched.flatten()[-count:]
            tensor.copy_(changed.view_as(tensor))
        case Kind.TIMES:
            tensor.mul_(size)
        case Kind.OVER if tensor.is_floating_point():
            tensor.div_(size)
        case Kind.BF16 if tensor.is_floating_point():
            tensor.copy_(tensor.bfloat16())
        case _:
            pass
