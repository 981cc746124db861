"""What NCCL's log must say before a way is measured."""

from __future__ import annotations

import pytest

from pytest_gpuperf import NcclLog
from suites.shared.ways import NET, SHM, Way


def log_of(*communicators: tuple[int, int], via: str) -> NcclLog:
    """A log of communicators of so many ranks on so many nodes, connected in one way."""
    lines = ["NCCL version 2.28.9+cuda13.0"]
    lines += [
        f"comm 0x1 rank 0 nRanks {ranks} nNodes {nodes} localRanks 1 localRank 0" for ranks, nodes in communicators
    ]
    return NcclLog.of("\n".join([*lines, f"Channel 00/0 : 0[0] -> 1[0] via {via}"]))


def test_groups_of_fewer_ranks_say_nothing_of_the_nodes() -> None:
    NET.require([log_of((2, 2), (1, 1), via="NET/Socket/0")] * 2)


@pytest.mark.parametrize(
    ("way", "log", "reason"),
    [
        (NET, log_of((2, 1), via="NET/Socket/0"), r"NCCL sees \[1\] nodes here, which NET/Socket is not measured for"),
        (SHM, log_of((2, 2), via="SHM/direct/direct"), r"NCCL sees \[2\] nodes here, which SHM is not measured for"),
        (SHM, log_of((2, 1), via="P2P/CUMEM"), "NCCL has no SHM here: it connects these GPUs by P2P/CUMEM"),
    ],
)
def test_another_way_skips(way: Way, log: NcclLog, reason: str) -> None:
    with pytest.raises(pytest.skip.Exception, match=reason):
        way.require([log] * 2)
