"""torchcomms' collectives beside c10d's: at once, or in flight while a product is computed.

torchcomms (https://github.com/meta-pytorch/torchcomms) is a package of its own. It makes communicators, not process
groups, and its collectives take no group.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.shared.inputs import rank_input
from suites.shared.step import Tensors

PACKAGE = "torchcomms"
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
ROOT = 1
"""The rank that broadcasts."""

Make = Callable[[Context], tuple[Any, Any]]
"""Returns the sum's operator, and a communicator of all ranks."""


def missing() -> str | None:
    """Why torchcomms cannot run here; None if it is installed."""
    if importlib.util.find_spec(PACKAGE) is None:
        return f"{PACKAGE} is not installed: pip install {PACKAGE}"
    return None


def new_communicator(ctx: Context) -> tuple[Any, Any]:
    """A communicator of torchcomms, whose ranks meet in a store that rank 0 opens."""
    torchcomms = importlib.import_module(PACKAGE)
    first = ctx.rank == 0
    store = dist.TCPStore("127.0.0.1", 0, ctx.world_size, is_master=True, wait_for_workers=False) if first else None
    held: list[Any] = [None if store is None else store.port]
    dist.broadcast_object_list(held, src=0, device=ctx.device)
    if store is None:
        store = dist.TCPStore("127.0.0.1", held[0], ctx.world_size, is_master=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHCOMM_RANK", str(ctx.rank))
        patch.setenv("TORCHCOMM_SIZE", str(ctx.world_size))
        made = torchcomms.new_comm(BACKENDS[ctx.device.type], ctx.device, store=store, name="beside c10d")
    return torchcomms.ReduceOp.SUM, made


def both(
    ctx: Context, *, make: Make, numel: int, seed: int, asynchronous: bool, steps: int
) -> list[tuple[Tensors, Tensors]]:
    """What torchcomms' collectives leave on a rank in each step, and what c10d's leave.

    Args:
        ctx: the rank's context.
        make: makes the communicator.
        numel: elements of a rank's tensor for each rank.
        seed: of the inputs.
        asynchronous: whether all are in flight at once, while a product is computed.
        steps: how often, each time with other inputs.
    """
    operator, communicator = make(ctx)
    try:
        found = []
        for step in range(steps):
            x = rank_input(ctx.rank, shape=(ctx.world_size, numel), dtype=torch.float64, seed=seed * 8 + step)
            mine = x.to(ctx.device)
            found.append((_theirs(operator, communicator, mine, asynchronous), _of_c10d(mine)))
        return found
    finally:
        communicator.finalize()


def _theirs(operator: Any, communicator: Any, x: torch.Tensor, asynchronous: bool) -> Tensors:
    held = _outputs(x)
    works = [
        communicator.all_reduce(held["all_reduce"], operator, asynchronous),
        communicator.broadcast(held["broadcast"], ROOT, asynchronous),
        communicator.all_gather_single(held["all_gather"], x, asynchronous),
        communicator.reduce_scatter_single(held["reduce_scatter"], x, operator, asynchronous),
        communicator.all_to_all_single(held["all_to_all"], x, asynchronous),
    ]
    if asynchronous:
        held["product"] = x @ x.T
        for work in works:
            work.wait()
    else:
        held["product"] = x @ x.T
    return held


def _of_c10d(x: torch.Tensor) -> Tensors:
    held = _outputs(x)
    dist.all_reduce(held["all_reduce"])
    dist.broadcast(held["broadcast"], ROOT)
    dist.all_gather_into_tensor(held["all_gather"], x)
    dist.reduce_scatter_tensor(held["reduce_scatter"], x)
    dist.all_to_all_single(held["all_to_all"], x)
    return {**held, "product": x @ x.T}


def _outputs(x: torch.Tensor) -> Tensors:
    """What each collective fills, or works on."""
    ranks = len(x)
    return {
        "all_reduce": x.clone(),
        "broadcast": x.clone(),
        "all_gather": x.new_zeros(ranks * len(x), x.shape[1]),
        "reduce_scatter": x.new_zeros(1, x.shape[1]),
        "all_to_all": torch.zeros_like(x),
    }
