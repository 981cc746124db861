"""How a training script that torchrun starts opens its process groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

_STARTING = timedelta(seconds=120)  # what ranks wait for each other while they start, on a busy machine


@contextmanager
def opened_groups(patience: float) -> Iterator[tuple[torch.device, dist.ProcessGroup]]:
    """Opens the default group and one for training, and yields the rank's device and the second group.

    Args:
        patience: seconds after which a collective of training gives up: gloo raises, NCCL's watchdog ends the process.
            The default group, for the start and for checkpoints, is more patient.
    """
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=_STARTING)
    group = dist.new_group(timeout=timedelta(seconds=patience))
    assert group is not None
    yield device, group
    dist.destroy_process_group()  # not after an error: NCCL could wait for a rank that is dead
