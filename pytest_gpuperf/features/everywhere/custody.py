"""The processes of a node, in the custody of its keeper."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pytest_gpuperf.features.everywhere import keeper
from pytest_gpuperf.ranks.descent import adopt_orphans

_PREFIX = "gpuperf-ray-"
_END_TIMEOUT = 25.0  # seconds for the keeper to kill what it has started


class CustodyError(Exception):
    """The keeper has ended, and all that it had started with it."""


class Custody:
    """Starts processes through a keeper. They end with this process, and with the keeper, however either ends."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.folder = folder
        """A folder of the node for what its processes write; it is removed in the end."""
        self._folders = [str(folder)]
        self._process = process
        self._ended: dict[str, asyncio.Future[tuple[int, str]]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._empty = False

    @classmethod
    async def begin(cls, parent: Path) -> Self:
        """Return a custody whose keeper is starting.

        Args:
            parent: where its folder is made; the path must be short, because Ray's sockets are in it.
        """
        adopt_orphans()  # of a keeper that is killed
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        here, there = socket.socketpair()
        with there:
            command = [sys.executable, "-m", keeper.__name__, str(there.fileno()), str(folder)]
            process = subprocess.Popen(command, pass_fds=[there.fileno()], start_new_session=True)
        custody = cls(process, folder)
        reader, custody._writer = await asyncio.open_unix_connection(sock=here)
        custody._reading = asyncio.create_task(custody._read(reader))
        return custody

    async def run(self, name: str, argv: Sequence[str], environ: Mapping[str, str], output: Path | None) -> int:
        """Runs a command to its end; return its exit status, 128 and the number of a signal that ended it.

        Args:
            name: a name for it.
            argv: the command.
            environ: its environment.
            output: file for what it prints; None for this process's own streams.

        Raises:
            CustodyError: the keeper has ended.
        """
        if self._reading is not None and self._reading.done():
            raise self._make_loss()
        ended: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self._ended[name] = ended
        file = None if output is None else str(output)
        self._ask(do="start", name=name, argv=list(argv), env=dict(environ), output=file)
        status, error = await ended
        if error:
            print(f"gpuperf: {error}", file=sys.stderr, flush=True)
        return status

    def signal(self, name: str, number: signal.Signals) -> None:
        """Sends a signal to a command that runs, and to its process group."""
        self._ask(do="signal", name=name, number=int(number))

    async def await_loss(self) -> None:
        """Returns once the keeper has ended."""
        if self._reading is not None:
            await asyncio.shield(self._reading)

    def remove(self, folder: str) -> None:
        """Has another folder removed in the end, if it is one that a custody has made, here or on another node."""
        if Path(folder).name.startswith(_PREFIX) and Path(folder).parent == self.folder.parent:
            self._folders.append(folder)
            self._ask(do="remove", folder=folder)

    async def close(self) -> bool:
        """Kills all processes and removes the folder; return whether none is left."""
        self._ask(do="end")
        try:
            await asyncio.wait_for(asyncio.to_thread(self._process.wait), _END_TIMEOUT)
        except TimeoutError:
            self._process.kill()
        if self._reading is not None:
            await self._reading
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
        if not self._empty:  # the keeper was killed: what it had started are children of this process now
            self._empty = keeper.end_descendants()
            for folder in self._folders:
                shutil.rmtree(folder, ignore_errors=True)
        return self._empty

    def _ask(self, **what: Any) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.write(json.dumps(what).encode() + b"\n")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            told = json.loads(line)
            self._empty = told.get("empty", self._empty)
            ended = self._ended.pop(told.get("ended", ""), None)
            if ended is not None and not ended.done():
                ended.set_result((told["status"], told.get("error", "")))
        for waiting in self._ended.values():
            if not waiting.done():
                waiting.set_exception(self._make_loss())
        self._ended.clear()

    def _make_loss(self) -> CustodyError:
        return CustodyError(f"the keeper of this node's processes (pid {self._process.pid}) has ended")


def choose_temp_folder(environ: Mapping[str, str]) -> Path:
    """Return where the folder of a custody is made: as Ray does, and not below a long TMPDIR."""
    return Path(environ.get("RAY_TMPDIR") or "/tmp")
