"""A process that a client forked, without torch: it runs the source that it is sent."""

import os
import tempfile
from collections.abc import Mapping
from typing import IO, Any

from pytest_gpuperf.ranks.channel import Channel
from pytest_gpuperf.ranks.forkserver_client import ForkserverClient
from tests.ranks.processes import DEADLINE

PRELOAD = ("tests.ranks.light_rank",)
WAIT = "connection.receive()"  # for ever: nothing more is sent
ENVIRON = {"PATH": os.environ["PATH"]}


class Rank:
    """A process that a client forked, with the other ends of what it holds."""

    def __init__(self, client: ForkserverClient, source: str, environ: Mapping[str, str] = ENVIRON) -> None:
        (self.connection, theirs), (self.inquiries, asked) = Channel.pair(), Channel.pair()
        self.files: list[IO[bytes]] = [tempfile.TemporaryFile() for _ in range(3)]  # noqa: SIM115
        fds = [theirs.fileno(), asked.fileno(), *(file.fileno() for file in self.files)]
        try:
            self.pid = client.fork(environ, fds)
            self.connection.send(source)
        except BaseException:
            self.close()
            raise
        finally:
            theirs.close()
            asked.close()

    def printed(self) -> list[str]:
        return [os.pread(file.fileno(), 1 << 16, 0).decode() for file in self.files]

    def received(self) -> Any:
        assert self.connection.poll(DEADLINE), self.printed()
        return self.connection.receive()[0]

    def close(self) -> None:
        self.connection.close()
        self.inquiries.close()
        for file in self.files:
            file.close()
