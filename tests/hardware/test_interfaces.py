"""The interface that has an address."""

from pytest_gpuperf.hardware.interfaces import interface_names, interface_of


def test_the_interface_of_an_address_is_found() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.1") is None
    assert "lo" in interface_names()
