"""The TCP ports on which a process of this machine listens."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from pathlib import Path

_LISTENS = "0A"  # linux/tcp_states.h


def listening(pid: int) -> list[tuple[str, int]]:
    """Address and port of each of its sockets that listen, in order."""
    own = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed since
            if found := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor)):
                own.add(found[1])
    sockets = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *others = line.split()
            if state == _LISTENS and others[5] in own:
                address, _, port = local.partition(":")
                sockets.append((_address(address), int(port, 16)))
    return sorted(sockets)


def _address(words: str) -> str:
    # Words of 32 bits, each with its last byte first.
    parts = [bytes.fromhex(words[at : at + 8])[::-1] for at in range(0, len(words), 8)]
    return str(ipaddress.ip_address(b"".join(parts)))
