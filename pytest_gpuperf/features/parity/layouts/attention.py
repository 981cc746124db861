"""Attention whose sequence lies on several ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional as F  # noqa: N812  # as everybody calls it

from pytest_gpuperf.features.parity.layouts.training import SplitError, call

_NAME = "F.scaled_dot_product_attention"


def require_attention(model: nn.Module, inputs: Any) -> None:
    """Refuses a model whose attention context_parallel cannot split.

    Raises:
        SplitError: says why.
    """
    plain = F.scaled_dot_product_attention
    calls: list[bool] = []

    def attention(query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        mask = kwargs.get("attn_mask", args[2] if len(args) > 2 else None)
        calls.append(mask is not None)
        return plain(query, *args, **kwargs)

    with _replace(attention), torch.no_grad():
        call(model, inputs)
    if not calls:
        raise SplitError(f"the model does not call {_NAME}, which context_parallel needs")
    if any(calls):
        raise SplitError(f"the model gives {_NAME} an attn_mask, which context_parallel does not take: use is_causal")


@contextlib.contextmanager
def _replace(attention: Callable[..., torch.Tensor]) -> Iterator[None]:
    plain = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        F.scaled_dot_product_attention = plain


@contextlib.contextmanager
def gather_attention(mesh: DeviceMesh) -> Iterator[None]:
    """Has attention see the keys and values of all ranks, since torch's context_parallel has kernels for GPUs only."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    plain: Callable[..., torch.Tensor] = F.scaled_dot_product_attention

    def gather(tensor: torch.Tensor) -> torch.Tensor:
        spread = DTensor.from_local(tensor.contiguous(), mesh, [Shard(2)], run_check=False)
        whole: torch.Tensor = spread.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        return whole

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **others: Any,
    ) -> torch.Tensor:
        key, value = gather(key), gather(value)
        mask = None
        if is_causal:
            rows = torch.arange(query.shape[2]) + mesh.get_local_rank() * query.shape[2]
            mask = torch.arange(key.shape[2]) <= rows[:, None]
        return plain(query, key, value, attn_mask=mask, dropout_p=dropout_p, **others)

    with _replace(attention):
        yield
