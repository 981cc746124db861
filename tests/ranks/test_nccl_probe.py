"""The collectives that ask NCCL for its choices run on every backend; without NCCL there is no log to read."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import pytest
import torch.distributed as dist

from pytest_gpuperf import Context, Ranks
from pytest_gpuperf.hardware.nccl_choices import describe_choices
from pytest_gpuperf.hardware.nccl_log import NcclLog
from pytest_gpuperf.ranks.nccl_probe import probe

LINE = "host:1:1 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}\n"


def written(ctx: Context) -> NcclLog:
    """Writes into the log what NCCL would, then asks as the run does."""
    with Path(os.environ["NCCL_DEBUG_FILE"]).open("w") as log:
        log.write(f"host:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n{LINE}")
        log.flush()
        return probe(ctx)


@pytest.mark.ranks(1, 2, device="cpu", nccl_log=True)
def test_the_choices_of_all_ranks_come_back(ranks: Ranks) -> None:
    logs = ranks.run(written)
    assert len(logs) == ranks.world_size
    assert describe_choices(logs) == {"all_reduce 1024": "RING, LL, 1 channel"}


def refused(ctx: Context) -> NcclLog:
    """Asks where a setting forbids all_gather, as NCCL says it."""

    def refuse(*_: object) -> None:
        raise dist.DistBackendError("no algorithm/protocol available for function AllGather")

    with patch.object(dist, "all_gather_into_tensor", refuse):
        return written(ctx)


@pytest.mark.ranks(2, device="cpu", nccl_log=True)
def test_a_collective_that_a_setting_forbids_leaves_what_was_chosen_before(ranks: Ranks) -> None:
    assert describe_choices(ranks.run(refused)) == {"all_reduce 1024": "RING, LL, 1 channel"}
