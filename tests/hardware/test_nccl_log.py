"""NCCL's log, in the words of several of its versions."""

from __future__ import annotations

import re

import pytest

from pytest_gpuperf.hardware.nccl_log import Choice, Communicator, Connection, NcclLog, UnknownLog

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


def test_a_transport_and_a_choice_can_be_asked_for() -> None:
    log = logged(LINKS)
    assert log.transport(0, 1) == "P2P/CUMEM"
    assert log.choice("all_reduce", 2**30) == Choice("AllReduce", 2**30, "RING", "SIMPLE", 24)
    assert log.choice("all_reduce", 4096).channels == 1


def test_the_last_choice_counts() -> None:
    again = "AllReduce: 4096 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..3}"
    assert logged(f"{LINKS}{again}\n").choice("all_reduce", 4096) == Choice("AllReduce", 4096, "TREE", "LL", 4)


def test_names_of_torch_are_those_of_nccl() -> None:
    line = "ReduceScatter: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}\n"
    log = NcclLog.of(f"{PREFIX}{line}", "2.28.9")
    assert log.choice("reduce_scatter", 1024).op == "ReduceScatter"


def test_what_the_log_does_not_have_is_not_guessed() -> None:
    log = logged(LINKS)
    with pytest.raises(LookupError, match=re.escape("from rank 1 to rank 0, only 0 to 1: ask rank 1, after a coll")):
        log.transport(1, 0)
    with pytest.raises(
        LookupError,
        match=r"for all_gather of 64 bytes, only AllReduce of 4096 bytes, AllReduce of 1073741824 bytes: ask rank 0",
    ):
        log.choice("all_gather", 64)
    two = logged(f"{LINKS}Channel 02/0 : 0[0] -> 1[1] via SHM/direct/direct\n")
    with pytest.raises(LookupError, match="rank 0 reaches rank 1 by P2P/CUMEM and SHM/direct/direct: look at conn"):
        two.transport(0, 1)


@pytest.mark.parametrize(
    ("version", "got"), [("2.31.0+cuda13.2", "NCCL 2.31.0"), ("2.2.8", "NCCL 2.2.8"), ("", "an NCCL whose version")]
)
def test_of_a_version_that_was_never_seen_nothing_is_claimed(version: str, got: str) -> None:
    log = NcclLog.of(LINKS.replace("NCCL version 2.28.9+cuda13.0\n", ""), version)
    assert not log.known
    for ask in (lambda: log.transport(0, 1), lambda: log.choice("all_reduce", 4096)):
        with pytest.raises(UnknownLog, match=re.escape(f"the log is of {got}")) as error:
            ask()
        assert "expected 2.28 or 2.30, whose formats are known" in str(error.value)
    assert log.over("P2P/CUMEM")  # connections are there to look at


def test_only_rank_0_s_log_has_the_version_and_torch_tells_it_to_the_others() -> None:
    text = f"{PREFIX}Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM\n"
    assert NcclLog.of(text, "2.28.9").transport(1, 0) == "P2P/CUMEM"
    assert NcclLog.of(f"NCCL version 2.28.9+cuda13.0\n{text}", "2.31.0").version == "2.28.9+cuda13.0"
