"""pdb at the frame where a rank's program failed, spoken through the controller's terminal. Runs in rank processes."""

from __future__ import annotations

import io
import pdb

from pytest_gpuperf.ranks.channel import Channel
from pytest_gpuperf.ranks.messages import Asked, Typed


def post_mortem(error: BaseException, connection: Channel) -> None:
    """Lets the user look at the frames of an exception, until they leave the debugger.

    Args:
        error: with its traceback, whose frames live in this process.
        connection: to the controller, which prints what it is sent and answers with what was typed.
    """
    terminal = _Terminal(connection)
    debugger = pdb.Pdb(stdin=terminal, stdout=terminal, nosigint=True)  # SIGINT is the controller's to handle
    debugger.reset()
    debugger.interaction(None, error.__traceback__)
    terminal.close()


class _Terminal(io.StringIO):
    """What pdb prints is gathered here and sent when it asks for a line."""

    def __init__(self, connection: Channel) -> None:
        super().__init__()
        self._connection = connection

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]  # StringIO's own signature
        printed = self.getvalue()
        self.seek(0)
        self.truncate()
        self._connection.send(Asked(printed))
        line, _ = self._connection.receive()
        return line.text if isinstance(line, Typed) else ""
