"""What a record keeps of NCCL's choices."""

from __future__ import annotations

from pytest_gpuperf.hardware.nccl_choices import describe_choices
from pytest_gpuperf.hardware.nccl_log import NcclLog

PREFIX = "host:41:57 [0] NCCL INFO "
FIRST = """\
NCCL version 2.28.9+cuda13.0
24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer
Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
AllGather: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
AllReduce: 67108864 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}
AllReduce: 4 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
"""
SECOND = "Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM\n"


def of(*texts: str) -> list[NcclLog]:
    return [NcclLog.of("".join(f"{PREFIX}{line}\n" for line in text.splitlines()), "2.28.9") for text in texts]


def test_choices_channels_and_the_transport_of_all_pairs() -> None:
    assert describe_choices(of(FIRST, SECOND)) == {
        "all_reduce 1024": "RING, LL, 1 channel",
        "all_reduce 67108864": "RING, SIMPLE, 24 channels",
        "all_gather 1024": "RING, LL, 1 channel",
        "channels": "24 for collectives, 32 for sends",
        "transport": "P2P/CUMEM",
    }


def test_pairs_that_are_connected_otherwise_are_counted() -> None:
    shm = SECOND.replace("P2P/CUMEM", "SHM/direct/direct")
    assert describe_choices(of(FIRST, shm))["transport"] == "P2P/CUMEM (1 of 2 pairs), SHM/direct/direct (1 of 2 pairs)"


def test_logs_of_unknown_versions_and_no_logs_say_nothing() -> None:
    assert describe_choices(of(FIRST.replace("2.28.9", "2.99.0"), SECOND)) == {}
    assert describe_choices([]) == {}
    assert describe_choices([NcclLog.of("", "2.28.9")]) == {}
