"""Stands in for the rank's main, which would load torch. A client that preloads it has ranks in milliseconds.

It runs the source that it is sent, and answers a pool's requests without doing anything.
"""

import contextlib
import os
import sys
from types import ModuleType

from pytest_gpuperf.ranks.channel import Channel, Parcel
from pytest_gpuperf.ranks.messages import Returned, Start, Started

STANDS_FOR = "pytest_gpuperf.ranks.rank"


def main(connection: Channel, inquiries: Channel, stacks_fd: int) -> None:
    """Serves the controller until it closes the connection."""
    with contextlib.suppress(EOFError):
        while True:
            match connection.receive()[0]:
                case str(source):
                    exec(source, {"connection": connection, "stacks_fd": stacks_fd})
                    return
                case Start():
                    connection.send(Started(1, 0))
                case request:
                    connection.send(Returned(request.run), Parcel(str(os.getpid()).encode()))


if "pytest_gpuperf.ranks.forkserver" in sys.modules and "pytest" not in sys.modules:
    stand_in = ModuleType(STANDS_FOR)
    stand_in.__dict__["main"] = main
    sys.modules[STANDS_FOR] = stand_in
