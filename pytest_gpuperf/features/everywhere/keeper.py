"""The process that starts Ray and the command on a node, and ends all that they leave when its parent ends.

The launcher may kill the parent at any time. This process notices that, because a socket closes.
It is run as ``python -m pytest_gpuperf.features.everywhere.keeper FD FOLDER``; requests and answers are lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from pytest_gpuperf.ranks.descent import adopt_orphans, list_children

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK = 0.01  # seconds between looks at processes that were killed
_KILL_TIMEOUT = 20.0  # seconds; a process in the kernel's hands, with a GPU, takes some


class Keeper:
    """Starts processes, and reports how each has ended."""

    def __init__(self, control: socket.socket, folder: str) -> None:
        self._control = control
        self.folders = [folder]
        """Folders that are removed in the end."""
        self._names: dict[int, str] = {}
        self._sessions: dict[str, int] = {}

    def serve(self) -> None:
        """Does what is asked until the other side closes or says that all shall end."""
        wakeup, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(signalled)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        buffer = b""
        while True:
            ready, _, _ = select.select([self._control.fileno(), wakeup], [], [])
            if wakeup in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wakeup, 4096)
                self._reap()
            if self._control.fileno() in ready:
                data = self._control.recv(65536)
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    if not self._do(json.loads(line)):
                        return
                if not data:
                    return

    def _do(self, request: dict[str, Any]) -> bool:
        match request["do"]:
            case "start":
                self._start(**{key: value for key, value in request.items() if key != "do"})
            case "signal":
                if (pid := self._sessions.get(request["name"])) is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, request["number"])
            case "remove":
                self.folders.append(request["folder"])
            case "end":
                return False
        return True

    def _start(self, name: str, argv: list[str], env: dict[str, str], output: str | None) -> None:
        with contextlib.ExitStack() as stack:
            stream = None if output is None else stack.enter_context(open(output, "ab"))
            try:
                process = subprocess.Popen(
                    argv,
                    env=env,
                    stdin=None if output is None else subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    start_new_session=True,
                )
            except OSError as error:
                self._say(ended=name, status=127 if isinstance(error, FileNotFoundError) else 126, error=str(error))
                return
        self._names[process.pid], self._sessions[name] = name, process.pid
        process.returncode = 0  # it is reaped here with all others, and not by its object

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if (name := self._names.pop(pid, None)) is not None:
                del self._sessions[name]
                code = os.waitstatus_to_exitcode(status)
                self._say(ended=name, status=code if code >= 0 else 128 - code)

    def _say(self, **what: Any) -> None:
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps(what).encode() + b"\n")


def end_descendants() -> bool:
    """Kills all that descends from this process, which adopts orphans; return whether nothing is left."""
    until = time.monotonic() + _KILL_TIMEOUT
    while time.monotonic() < until:
        for pid in list_children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        time.sleep(_LOOK)
    return False


def main(control: str, folder: str) -> None:
    """Serves one parent.

    Args:
        control: number of the socket to it.
        folder: folder that is removed in the end.
    """
    adopt_orphans()
    for number in _SIGNALS:  # the launcher sends them to all processes; the parent decides
        signal.signal(number, lambda *_: None)
    with socket.socket(fileno=int(control)) as connected:
        keeper = Keeper(connected, folder)
        try:
            keeper.serve()
        finally:
            empty = end_descendants()
            for each in keeper.folders:
                shutil.rmtree(each, ignore_errors=True)
            with contextlib.suppress(OSError):
                connected.sendall(json.dumps({"empty": empty}).encode() + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
