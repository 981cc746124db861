"""The network of a node, from what the kernel has of its adapters; and of nodes together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuperf.hardware.network import Network, merge_networks, read_network

BOOT = {"proc/sys/kernel/random/boot_id": "a boot"}
ETH0 = {"sys/class/net/eth0/device/vendor": "0x8086", "sys/class/net/eth0/speed": "10000"}
GBIT = 1e9 / 8


def port(device: str, rate: str = "400 Gb/sec (4X NDR)", state: str = "4: ACTIVE") -> dict[str, str]:
    """What the kernel has of a port."""
    folder = f"sys/class/infiniband/{device}/ports/1"
    return {f"{folder}/rate": rate, f"{folder}/state": state}


def written(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return folder


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (ETH0, Network("eth0", one=10 * GBIT, together=10 * GBIT)),
        (
            ETH0 | port("mlx5_0") | port("mlx5_1", "200 Gb/sec (4X HDR)"),
            Network("mlx5_0, mlx5_1", rdma=True, one=200 * GBIT, together=600 * GBIT),
        ),
        (ETH0 | port("mlx5_0", state="1: DOWN"), Network("eth0", one=10 * GBIT, together=10 * GBIT)),
        (
            {
                "sys/class/net/eth0/bonding/slaves": "ens1 ens2",
                "sys/class/net/eth0/speed": "50000",
                "sys/class/net/ens1/speed": "25000",
                "sys/class/net/ens2/speed": "25000",
            },
            Network("eth0", one=25 * GBIT, together=50 * GBIT),
        ),
    ],
    ids=["interface", "ports", "port without a link", "bond"],
)
def test_rates_of_adapters(tmp_path: Path, files: dict[str, str], expected: Network) -> None:
    assert read_network("eth0", written(tmp_path, BOOT | files)) == replace(expected, boot="a boot")


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (ETH0 | {"sys/class/net/eth0/speed": "-1"}, "the rate of eth0 is unknown"),
        ({"sys/class/net/eth0/device/vendor": "0x1af4"}, "the rate of eth0 is unknown"),
        ({"sys/class/net/eth0/speed": "10000"}, "eth0 is no adapter, so its rate is unknown"),
        (
            {"sys/class/net/eth0/bonding/slaves": "ens1 ens2", "sys/class/net/eth0/speed": "50000"},
            "the rate of eth0 is unknown",
        ),
        (port("mlx5_0") | port("mlx5_1", "unknown"), "the rate of mlx5_0, mlx5_1 is unknown"),
    ],
    ids=["virtual machine", "interface that is down", "veth", "bond of unknown ones", "port"],
)
def test_without_a_rate_the_reason_is_told(tmp_path: Path, files: Mapping[str, str], why: str) -> None:
    network = read_network("eth0", written(tmp_path, files))
    assert (network.one, network.together, network.unknown) == (None, None, why)


def test_without_an_interface_there_is_no_rate(tmp_path: Path) -> None:
    assert read_network(None, tmp_path).unknown == "the interface between the nodes is unknown"


def test_what_efa_says_is_no_rate(tmp_path: Path) -> None:
    written(tmp_path, port("rdmap0", "100 Gb/sec (4X EDR)"))
    driver = tmp_path / "sys/class/infiniband/rdmap0/device/driver"
    driver.parent.mkdir()
    driver.symlink_to("../../bus/pci/drivers/efa")
    assert read_network("eth0", tmp_path).unknown == "EFA gives no rate of rdmap0 that is one"


FAST = Network("mlx5_0", rdma=True, one=50e9, together=100e9, boot="a")
SLOW = Network("mlx5_0", rdma=True, one=25e9, together=200e9, boot="b")


@pytest.mark.parametrize(
    ("networks", "expected"),
    [
        ([FAST, SLOW], Network("mlx5_0", rdma=True, one=25e9, together=100e9)),
        ([FAST, None], None),
        ([FAST, FAST], Network(unknown="several nodes are one machine, and no adapter is between them")),
        (
            [FAST, replace(SLOW, boot="")],
            Network(unknown="several nodes are one machine, and no adapter is between them"),
        ),
        ([FAST, replace(SLOW, rdma=False)], Network(unknown="some nodes have adapters for RDMA, and others have none")),
        (
            [FAST, Network("eth0", boot="b", unknown="the rate of eth0 is unknown")],
            Network("eth0", unknown="node n1: the rate of eth0 is unknown"),
        ),
    ],
)
def test_nodes_are_as_fast_as_the_slowest(networks: list[Network | None], expected: Network | None) -> None:
    assert merge_networks({f"n{index}": network for index, network in enumerate(networks)}) == expected
