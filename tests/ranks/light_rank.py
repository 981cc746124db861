"""Stands in for the rank's main, which would load torch. A launcher that preloads it has ranks in milliseconds.

It runs the source that it is sent, and answers a pool's requests without doing anything.
"""

import contextlib
import os
import sys
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

from pytest_gpuperf.ranks.messages import Returned, Start, Started

STANDS_FOR = "pytest_gpuperf.ranks.rank"


def main(connection: "Connection[Any, Any]", inquiries: "Connection[Any, Any]", stacks_fd: int) -> None:
    """Serves the controller until it closes the connection."""
    with contextlib.suppress(EOFError):
        while True:
            match connection.recv():
                case str(source):
                    exec(source, {"connection": connection, "stacks_fd": stacks_fd})
                    return
                case Start():
                    connection.send(Started(1, 0))
                case request:
                    connection.send(Returned(request.run))
                    connection.send_bytes(str(os.getpid()).encode())


if "pytest_gpuperf.ranks.forkserver" in sys.modules and "pytest" not in sys.modules:
    stand_in = ModuleType(STANDS_FOR)
    stand_in.__dict__["main"] = main
    sys.modules[STANDS_FOR] = stand_in
