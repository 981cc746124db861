"""The network interfaces of this machine."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct

_SIOCGIFADDR, _SIOCGIFMTU = 0x8915, 0x8921  # linux/sockios.h


def find_interface(address: str) -> str | None:
    """The network interface that has an IPv4 address; None if none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for name in list_interfaces():
            with contextlib.suppress(OSError):  # it has no address
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, _request(name))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def read_packet_size(name: str) -> int | None:
    """The bytes of an interface's largest packet (MTU); None if there is no such interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _SIOCGIFMTU, _request(name))
        except OSError:
            return None
    return int(struct.unpack_from("i", answer, 16)[0])


def list_interfaces() -> tuple[str, ...]:
    """The names of all interfaces."""
    return tuple(name for _, name in socket.if_nameindex())


def _request(name: str) -> bytes:
    return struct.pack("256s", name.encode()[:15])
