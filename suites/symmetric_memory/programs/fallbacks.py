"""torch's own forms of the fused products, which it takes where there is no symmetric memory, as on CPUs."""

from __future__ import annotations

import torch
import torch.distributed._symmetric_memory as symmetric

from pytest_gpuperf import Context
from suites.shared.step import Tensors


def gathered(
    ctx: Context, *, parts: list[torch.Tensor], weights: list[torch.Tensor], dim: int, return_whole: bool
) -> Tensors:
    """The whole of the ranks' parts, if it is returned, and its products.

    Args:
        ctx: the rank's context.
        parts: of each rank, with three dimensions.
        weights: matrices.
        dim: along which the parts are put together.
        return_whole: whether the whole is returned.
    """
    part, name = parts[ctx.rank].to(ctx.device), ctx.group.group_name
    whole, products = symmetric._fused_all_gather_matmul_fallback(
        part, [weight.to(ctx.device) for weight in weights], dim, name, return_A=return_whole
    )
    found = {f"product {number}": product for number, product in enumerate(products)}
    return found if whole is None else found | {"whole": whole}


def scattered(ctx: Context, *, xs: list[torch.Tensor], weight: torch.Tensor, dim: int, op: str) -> torch.Tensor:
    """The rank's part along ``dim`` of the sum or the mean of the ranks' products.

    Args:
        ctx: the rank's context.
        xs: of each rank, with three dimensions.
        weight: a matrix.
        dim: along which the result is cut.
        op: ``sum`` or ``avg``.
    """
    return symmetric._fused_matmul_reduce_scatter_fallback(
        xs[ctx.rank].to(ctx.device), weight.to(ctx.device), op, dim, ctx.group.group_name
    )
