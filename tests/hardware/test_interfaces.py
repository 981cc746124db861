"""The interface that has an address."""

from pathlib import Path

from pytest_gpuperf.hardware.interfaces import find_interface, list_interfaces, read_packet_size


def test_the_interface_of_an_address_is_found() -> None:
    assert find_interface("127.0.0.1") == "lo"
    assert find_interface("203.0.113.1") is None
    assert "lo" in list_interfaces()


def test_the_size_of_packets_is_the_kernels() -> None:
    assert read_packet_size("lo") == int(Path("/sys/class/net/lo/mtu").read_text())
    assert read_packet_size("no such one") is None
