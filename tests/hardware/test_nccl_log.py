"""NCCL's log, in the words of several of its versions."""

from __future__ import annotations

import pytest

from pytest_gpuperf.hardware.nccl_log import Choice, Communicator, Connection, NcclLog

PREFIX = "host:41:57 [0] NCCL INFO "
LINKS = """\
NCCL version 2.28.9+cuda13.0
comm 0x55 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0
24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer
Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
AllReduce: 1073741824 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}
"""


# As NCCL 2.28.9 wrote it for two ranks with an NCCL_HOSTID each; lines that are not read here stand for their like.
NODES = """\
NCCL version 2.28.9+cuda13.0
Pattern 4, crossNic 0, nChannels 1, bw 1.200000/1.200000, type LOC/PHB, sameChannels 1
comm 0x3aaedb80 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
Channel 00/02 : 0 1
2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer
Connected to proxy localRank 0 -> connection 0x7fb91c004f70
Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0
Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
Connected all rings, use ring PXN 0 GDR 0
AllReduce: 4 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
comm 0x42fd6260 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
Channel 00/1 : 1[0] -> 0[0] [receive] via NET/Socket/0/Shared
AllReduce: 67108864 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}
"""


def logged(lines: str) -> NcclLog:
    return NcclLog.of("".join(f"{PREFIX}{line}\n" for line in lines.splitlines()))


def test_a_log_of_links() -> None:
    log = logged(LINKS)
    assert log.version == "2.28.9+cuda13.0"
    assert log.communicators == (Communicator(ranks=2, nodes=1, local_ranks=2),)
    assert log.connections == (Connection(0, 0, 1, "P2P/CUMEM"), Connection(1, 0, 1, "P2P/CUMEM"))
    assert log.choices == (Choice("AllReduce", 4096, "RING", "LL", 1), Choice("AllReduce", 2**30, "RING", "SIMPLE", 24))
    assert (log.coll_channels, log.p2p_channels, log.warnings) == ((24,), (32,), ())
    assert log.over("P2P/CUMEM")
    assert log.over("P2P")
    assert not log.over("P2P/CUMEM/read")


def test_a_log_of_nodes() -> None:
    log = logged(NODES)
    assert log.communicators == (Communicator(ranks=2, nodes=2, local_ranks=1),)
    assert log.connections == (
        Connection(0, 1, 0, "NET/Socket"),
        Connection(0, 0, 1, "NET/Socket"),
        Connection(0, 1, 0, "NET/Socket/Shared"),
    )
    assert log.choices == (Choice("AllReduce", 4, "RING", "LL", 1), Choice("AllReduce", 2**26, "RING", "SIMPLE", 2))
    assert (log.coll_channels, log.p2p_channels) == ((2,), (2,))
    assert log.over("NET/Socket")


@pytest.mark.parametrize(
    ("line", "transport"),
    [
        ("Channel 00/01 : 0[0] -> 1[1] via P2P/direct pointer", "P2P/direct pointer"),
        ("Channel 00/01 : 0[0] -> 1[1] via P2P/direct pointer/read", "P2P/direct pointer/read"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/IPC", "P2P/IPC"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read/CE", "P2P/CUMEM/read/CE"),
        ("Channel 02/0 : 0[1a000] -> 1[1b000] via P2P/indirect/3[1d000]", "P2P/indirect/3[1d000]"),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "SHM/direct/direct"),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct", "SHM/direct"),
        ("Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0", "NET/Socket"),
        ("Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0(0)/Shared", "NET/Socket/Shared"),
        ("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/3(2)/GDRDMA(PCI)", "NET/IB/GDRDMA(PCI)"),
    ],
)
def test_each_transport(line: str, transport: str) -> None:
    (connection,) = logged(line).connections
    assert connection.transport == transport


def test_connections_of_two_kinds_are_over_neither() -> None:
    log = logged("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\nChannel 00/0 : 0[0] -> 2[0] [send] via NET/Socket/0\n")
    assert log.transports == {"P2P/CUMEM", "NET/Socket"}
    assert not log.over("P2P")
    assert not log.over("NET")


def test_a_way_is_not_taken_for_another_that_begins_alike() -> None:
    assert not logged("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEMX").over("P2P/CUMEM")


def test_a_log_that_says_nothing_is_over_nothing() -> None:
    log = NcclLog.of("")
    assert log == NcclLog("", (), (), (), (), (), ())
    assert not log.over("P2P")


def test_warnings_are_kept() -> None:
    log = NcclLog.of("host:41:57 [0] misc/socket.cc:71 NCCL WARN Connect failed : Connection refused\n")
    assert log.warnings == ("Connect failed : Connection refused",)


def test_older_logs_number_the_algorithm() -> None:
    (choice,) = logged("AllReduce: 4096 Bytes -> Algo 1 proto 2 channel{Lo..Hi}={0..3}").choices
    assert choice == Choice("AllReduce", 4096, "1", "2", 4)
