"""Until when NCCL holds what a program has sent, if nobody waits for the operation."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from pytest_gpuperf import Context

WATCHDOG_SECONDS = 0.1
"""How often NCCL's watchdog looks which operations have ended (``kWatchdogThreadSleepMillis``).

DistributedDataParallel waits for futures and not for these operations, so that its buckets are held until then, and
until the next collective (``shelvesToUnstash_``).
"""


def await_watchdog(ctx: Context) -> None:
    """Gives NCCL's watchdog time to let go of what the ranks have sent; none on CPUs, where gloo holds nothing."""
    if ctx.device.type != "cuda":
        return
    torch.cuda.synchronize(ctx.device)
    time.sleep(2 * WATCHDOG_SECONDS)  # torch has no event for it; twice, beside a busy host
    dist.barrier()
