"""Ports are read as the kernel lists them, NCCL's log says which of them it uses, and what is sent arrives."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuperf import Context, MiB, Ranks
from suites.network import reference
from suites.network.programs import Port, Route, ports, why_none
from suites.shared.ring import ring

NDR = {"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}
ROCE = {"state": "4: ACTIVE", "rate": "200 Gb/sec (2X NDR)", "link_layer": "Ethernet"}
DOWN = {"state": "1: DOWN", "rate": "2.5 Gb/sec (1X SDR)", "link_layer": "InfiniBand"}
LOG = """\
NCCL version 2.28.9+cuda13.0
NCCL_IB_HCA set to =mlx5_3:1
NET/IB : Using [0]mlx5_3:1/IB [RO]; OOB eth0:10.0.0.1<0>
Using network IB
comm 0x55 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0
Channel 00/0 : 1[1] -> 0[0] [receive] via NET/IB/0/GDRDMA
Channel 01/0 : 1[1] -> 0[0] [receive] via NET/IB/0/GDRDMA(PCI)
Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0(1)
"""


def described(root: Path, **devices: dict[str, str]) -> Path:
    """A folder of devices as the kernel has it; a name such as mlx5_0__2 is the port 2 of mlx5_0."""
    for name, files in devices.items():
        device, _, number = name.partition("__")
        port = root / device / "ports" / (number or "1")
        port.mkdir(parents=True)
        for file, text in files.items():
            (port / file).write_text(f"{text}\n")
    return root


def test_ports_are_read(tmp_path: Path) -> None:
    found = ports(described(tmp_path, mlx5_1=ROCE, mlx5_0__2=DOWN, mlx5_0=NDR))
    assert found == [
        Port("mlx5_0", 1, "ACTIVE", "InfiniBand", 50e9),
        Port("mlx5_0", 2, "DOWN", "InfiniBand", 2.5e9 / 8),
        Port("mlx5_1", 1, "ACTIVE", "Ethernet", 25e9),
    ]
    assert [port.usable for port in found] == [True, False, True]
    assert why_none(found) == ""


def test_without_devices_the_reason_is_told(tmp_path: Path) -> None:
    assert ports(tmp_path / "none") == ports(tmp_path) == []
    assert why_none([]) == "no RDMA device: /sys/class/infiniband is empty or absent"


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (DOWN, "x0:1 is DOWN (InfiniBand)"),
        (NDR | {"state": "2: INIT"}, "x0:1 is INIT (InfiniBand)"),
        (NDR | {"link_layer": "Unspecified"}, "x0:1 is ACTIVE (Unspecified)"),
        (NDR | {"rate": "unknown"}, "x0:1 is ACTIVE (InfiniBand)"),
        ({}, "x0:1 is in no state (no link layer)"),
    ],
)
def test_a_port_that_nccl_cannot_use_is_told(tmp_path: Path, files: dict[str, str], told: str) -> None:
    found = ports(described(tmp_path, x0=files))
    assert [port.usable for port in found] == [False]
    assert why_none(found) == f"no RDMA port that NCCL can use: {told}"


def test_the_way_leaves_nccl_only_this_port() -> None:
    assert Port("mlx5_3", 1, "ACTIVE", "InfiniBand", 50e9).way.environ == {
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_NET": "IB",
        "NCCL_IB_HCA": "=mlx5_3:1",
    }


def test_the_log_tells_the_port_and_who_reaches_the_gpu() -> None:
    route = Route.of("".join(f"host:41:57 [0] NCCL INFO {line}\n" for line in LOG.splitlines()))
    assert route.used == ("mlx5_3:1",)
    assert route.log.over("NET/IB")
    assert route.channels == {"gpudirect": 2, "through_host": 1}
    several = Route.of("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_bond_0:1/RoCE [2]mlx5_0:2/IB [RO]; OOB eth0:10.0.0.1<0>")
    assert several.used == ("mlx5_0:1", "mlx5_bond_0:1", "mlx5_0:2")
    assert Route.of("NET/Socket : Using [0]eth0:10.0.0.1<0>").used == ()


class Told:
    """Ranks whose logs are these."""

    def __init__(self, *texts: str) -> None:
        self.routes = [Route.of(text) for text in texts]

    def run(self, program: object) -> list[Route]:
        return self.routes


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (LOG.replace("mlx5_3:1/IB", "mlx5_4:1/IB"), r"NCCL uses mlx5_4:1 on rank [01], expected mlx5_3:1 alone"),
        (
            LOG.replace("[0]mlx5_3:1/IB", "[0]mlx5_3:1/IB [1]mlx5_4:1/IB"),
            r"NCCL uses mlx5_3:1, mlx5_4:1 on rank [01], expected",
        ),
        (
            LOG.replace("NET/IB : Using", "NET/IB :"),
            r"NCCL uses no port that its log names on rank [01], expected mlx5_3:1 alone",
        ),
        (LOG.replace("NET/IB/0", "SHM/direct"), "NCCL has no NET/IB here"),
    ],
)
def test_another_way_skips(text: str, reason: str) -> None:
    port = Port("mlx5_3", 1, "ACTIVE", "InfiniBand", 50e9)
    assert len(reference.require(Told(LOG, LOG), port)) == 2  # type: ignore[arg-type]
    for texts in ((text, LOG), (LOG, text)):
        with pytest.raises(pytest.skip.Exception, match=reason):
            reference.require(Told(*texts), port)  # type: ignore[arg-type]


def in_turn(ctx: Context, sizes: list[int]) -> None:
    """Two steps of each size, compared on the ranks."""
    step_of = ring(ctx, sizes=sizes)
    for nbytes in sizes:
        step = step_of(nbytes)
        for steps in (1, 2):
            reference.arrived(ctx, step(), steps, nbytes)


@pytest.mark.ranks(2)
def test_messages_arrive(ranks: Ranks) -> None:
    ranks.run(in_turn, [1, 4097, 70_001])


def altered(ctx: Context) -> None:
    """One wrong byte, and one byte too few, are found."""
    received = ring(ctx, sizes=[999])(999)()
    with pytest.raises(AssertionError, match=f"^rank {ctx.rank}: 998 bytes, not 999"):
        reference.arrived(ctx, received[1:], 1, 999)
    received[500] ^= 1
    with pytest.raises(AssertionError, match=f"^rank {ctx.rank}: 1 of 999 bytes are wrong"):
        reference.arrived(ctx, received, 1, 999)


@pytest.mark.ranks(2)
def test_a_wrong_byte_is_found(ranks: Ranks) -> None:
    ranks.run(altered)


@reference.WORLD
class TestEachPort:
    @reference.each_port(ports())
    def test_messages_arrive(self, ranks: Ranks, port: Port) -> None:
        reference.require(ranks, port)
        ranks.run(in_turn, [1, 4097, 70_001, 64 * MiB])


def test_each_port_has_ranks_of_its_own(tmp_path: Path) -> None:
    found = ports(described(tmp_path, mlx5_0=NDR, mlx5_1=DOWN, mlx5_2=ROCE))
    values = reference.each_port(found).args[1]
    assert [value.id for value in values] == ["mlx5_0:1", "mlx5_2:1"]
    for value, name in zip(values, ["=mlx5_0:1", "=mlx5_2:1"], strict=True):
        (mark,) = value.marks
        assert mark.args == (2,)
        assert mark.kwargs["env"]["NCCL_IB_HCA"] == name
        assert mark.kwargs["nccl_log"]
    (none,) = reference.each_port(found[1:2]).args[1]
    assert none.id == "no device"
    assert none.marks[0].kwargs["reason"] == "no RDMA port that NCCL can use: mlx5_1:1 is DOWN (InfiniBand)"
