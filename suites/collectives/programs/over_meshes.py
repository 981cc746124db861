"""Functional collectives whose ranks are named by a mesh, one of its axes, a list or a name; and their gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from pytest_gpuperf import Context
from suites.collectives.programs.functional import older_names
from suites.shared.step import Tensors, gradient_of


def differentiates_sums() -> bool:
    """Whether ``all_reduce`` and what is coalesced have gradients with this torch."""
    return hasattr(functional, "all_reduce_backward")


def by_each_name(ctx: Context, *, xs: list[torch.Tensor]) -> Tensors:
    """Sums over the second axis of a mesh of two; and what becomes of one that nobody waits for by name.

    Args:
        ctx: the rank's context.
        xs: matrices of all ranks.
    """
    mesh = ctx.mesh((2, ctx.world_size // 2), ("outer", "inner"))
    group = mesh.get_group("inner")
    x = xs[ctx.rank].to(ctx.device)
    names: dict[str, Any] = {
        "group": group,
        "axis": mesh["inner"],
        "mesh and axis": (mesh, 1),
        "ranks": dist.get_process_group_ranks(group),
        "name": group.group_name,
    }
    found = {name: functional.wait_tensor(functional.all_reduce(x, "sum", ranks)) for name, ranks in names.items()}
    coming = functional.all_reduce(x, "sum", mesh["inner"])
    turned = coming.view(-1)[1:]
    found |= {
        "added": coming + x,
        "view": turned * 2,
        "list": torch.tensor(coming.tolist(), dtype=x.dtype),
        "array": torch.from_numpy(functional.all_reduce(x, "sum", group).cpu().numpy()),
        "in place": functional.all_reduce(x, "sum", group).mul_(3) + 0,
        "product": functional.all_reduce(x, "sum", group) @ functional.all_reduce(x.T, "max", group),
    }
    return found


def gradients(ctx: Context, *, xs: list[torch.Tensor], weights: list[torch.Tensor]) -> Tensors:
    """Gradients of inputs whose reduced, gathered and scattered values are weighed, by each rank in its own way.

    Args:
        ctx: the rank's context.
        xs: vectors of all ranks, which the number of ranks divides.
        weights: as long as what all ranks have together; each rank weighs as many as it has.
    """
    mesh = ctx.mesh((ctx.world_size,))
    weight = weights[ctx.rank].to(ctx.device)
    x = xs[ctx.rank].to(ctx.device)

    def two(leaf: torch.Tensor) -> list[torch.Tensor]:
        return [leaf, leaf * 2]

    gather = functional.all_gather_into_tensor_coalesced
    scatter = functional.reduce_scatter_tensor_coalesced
    calls: dict[str, Any] = {
        "all_reduce": lambda leaf: [functional.all_reduce(leaf, "sum", mesh)],
        "all_reduce_coalesced": lambda leaf: functional.all_reduce_coalesced(two(leaf), "sum", mesh),
        "all_gather": lambda leaf: gather(two(leaf), mesh),
        "reduce_scatter": lambda leaf: scatter(two(leaf), "sum", [0, 0], mesh),
    }
    found: Tensors = {}
    for name, call in calls.items():
        leaf = x.clone().requires_grad_()
        with older_names():
            several = call(leaf)
        loss = sum((place + 1) * (made * weight[: len(made)]).sum() for place, made in enumerate(several))
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        found[name] = gradient_of(leaf)
    return found
