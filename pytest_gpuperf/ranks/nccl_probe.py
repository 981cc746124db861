"""Asks NCCL for its choices: collectives of all kinds and sizes, none of them timed. Runs in rank processes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pytest_gpuperf.hardware.nccl_choices import SIZES
from pytest_gpuperf.hardware.nccl_log import NcclLog

if TYPE_CHECKING:
    from pytest_gpuperf.ranks.context import Context


def probe(context: Context) -> NcclLog:
    """Issue each collective whose choices are kept, and sends of all pairs; return the rank's log. Entry of a run.

    A setting may forbid a collective, as NCCL_ALGO=Tree does all_gather: then the log has what came before it.
    Memory: the largest collective gathers 64 MiB from each rank.
    """
    import torch
    import torch.distributed as dist

    ranks, device = context.world_size, context.device
    for nbytes in SIZES:
        dist.all_reduce(torch.zeros(nbytes // 4, device=device))
    # NCCL refuses on all ranks alike, before it moves anything.
    with contextlib.suppress(dist.DistBackendError):
        dist.all_to_all_single(torch.empty(ranks, device=device), torch.zeros(ranks, device=device))
        for nbytes in SIZES:
            part = torch.zeros(nbytes // 4, device=device)
            whole = torch.zeros(ranks * part.numel(), device=device)
            dist.all_gather_into_tensor(whole, part)
            dist.reduce_scatter_tensor(part, whole)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return context.nccl_log()
