"""The interface that has an address."""

from pathlib import Path

from pytest_gpuperf.hardware.interfaces import interface_names, interface_of, packet_size_of


def test_the_interface_of_an_address_is_found() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.1") is None
    assert "lo" in interface_names()


def test_the_size_of_packets_is_the_kernels() -> None:
    assert packet_size_of("lo") == int(Path("/sys/class/net/lo/mtu").read_text())
    assert packet_size_of("no such one") is None
