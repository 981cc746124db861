"""Functional collectives: each returns a new tensor, which has to be awaited, and leaves its input as it is."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from pytest_gpuperf import Context
from suites.shared.step import Tensors, gradient_of


@dataclass(frozen=True, slots=True)
class Asked:
    """What all ranks of a group do with one tensor each."""

    xs: Sequence[torch.Tensor]
    """The tensors of all ranks of the world; the group's size divides each dimension."""
    op: str
    dim: int
    """Along which tensors are gathered and scattered; may be negative."""
    sends: Sequence[Sequence[int]]
    """How many rows each rank of the group sends to each; one row of the square for each rank."""
    inner: int
    """Ranks of a group; groups are of neighbours."""


@contextlib.contextmanager
def older_names() -> Iterator[None]:
    """Names that a newer torch calls by others still work, with a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*_functional_collectives.* is deprecated", FutureWarning)
        yield


def _has_newer() -> bool:
    """Whether the installed torch has the newer names."""
    return hasattr(functional, "all_gather_single")


def all_forms(ctx: Context, *, asked: Asked, older: bool) -> Tensors:
    """What a rank has of each collective, and its input afterwards.

    Args:
        ctx: the rank's context.
        asked: the inputs.
        older: whether the names of torch 2.10 are used in place of newer ones.
    """
    mesh = ctx.mesh((ctx.world_size // asked.inner, asked.inner), ("outer", "inner"))
    group = mesh.get_group("inner")
    x = asked.xs[ctx.rank].to(ctx.device)
    with older_names():
        found = _returned(x, asked, group, older) | _coalesced(x, asked, group, older)
        found |= _with_gradients(x, asked, group, older)
    return {**found, "input afterwards": x}


def _returned(x: torch.Tensor, asked: Asked, group: dist.ProcessGroup, older: bool) -> Tensors:
    if older or not _has_newer():
        gather, scatter = functional.all_gather_tensor, functional.reduce_scatter_tensor
    else:
        gather, scatter = functional.all_gather_single, functional.reduce_scatter_single
    sends, receives = splits(asked, group.rank())
    rows = x.flatten()[: sum(sends)]
    # Each rank's goes to the next one.
    following = [(rank + 1) % asked.inner for rank in range(asked.inner)]
    returned = {
        "broadcast": functional.broadcast(x, 0, group),  # the rank in the group, not in the world
        "broadcast of the last": functional.broadcast(x, asked.inner - 1, group),
        "all_reduce": functional.all_reduce(x, asked.op, group),
        "all_gather": gather(x, asked.dim, group),
        "reduce_scatter": scatter(x, asked.op, asked.dim, group),
        "all_to_all": functional.all_to_all_single(rows, receives, sends, group),
        "all_to_all of equal parts": functional.all_to_all_single(x, None, None, group),
        "permute": functional.permute_tensor(x.flatten(), following, group),  # it splits one dimension only
    }
    return {name: functional.wait_tensor(tensor) for name, tensor in returned.items()}


def _coalesced(x: torch.Tensor, asked: Asked, group: dist.ProcessGroup, older: bool) -> Tensors:
    """Two tensors at once: the input, and twice of it."""
    two = [x, 2 * x]
    if older or not _has_newer():
        gather, scatter = functional.all_gather_into_tensor_coalesced, functional.reduce_scatter_tensor_coalesced
    else:
        gather, scatter = functional.all_gather_single_coalesced, functional.reduce_scatter_single_coalesced
    returned = {
        "all_reduce": functional.all_reduce_coalesced(two, asked.op, group),
        "all_gather": gather(two, group),
        "reduce_scatter": scatter(two, asked.op, [asked.dim, asked.dim], group),
    }
    return {
        f"{name}, {place} of two": functional.wait_tensor(tensor)
        for name, tensors in returned.items()
        for place, tensor in enumerate(tensors)
    }


def _with_gradients(x: torch.Tensor, asked: Asked, group: dist.ProcessGroup, older: bool) -> Tensors:
    """The input's gradient, if each rank's output gradient is the output itself."""
    if older or not _has_newer():
        gather, scatter = functional.all_gather_tensor_autograd, functional.reduce_scatter_tensor_autograd
    else:
        gather, scatter = functional.all_gather_single_autograd, functional.reduce_scatter_single_autograd
    sends, receives = splits(asked, group.rank())
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "all_gather": lambda leaf: gather(leaf, asked.dim, group),
        "reduce_scatter": lambda leaf: scatter(leaf, "sum", asked.dim, group),
        "all_to_all": lambda leaf: functional.all_to_all_single_autograd(
            leaf.flatten()[: sum(sends)], receives, sends, group
        ),
    }
    gradients: Tensors = {}
    for name, call in calls.items():
        leaf = x.clone().requires_grad_()
        output = functional.wait_tensor(call(leaf))
        output.backward(output.detach().clone())
        gradients[f"{name}, gradient"] = gradient_of(leaf)
    return gradients


def splits(asked: Asked, place: int) -> tuple[list[int], list[int]]:
    """How many rows the rank at this place of a group sends to each, and gets of each."""
    return list(asked.sends[place]), [row[place] for row in asked.sends]
