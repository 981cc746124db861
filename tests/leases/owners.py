"""Processes that hold leases, driven by a test one command at a time."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 20.0  # seconds that no test waits for in a run that goes well


class Owner:
    """One process; see owner.Commands."""

    def __init__(self, folder: Path, run: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.leases.owner", str(folder), run],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._children: list[int] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, command: str, **arguments: Any) -> None:
        """Gives a command without waiting for its answer."""
        assert self._process.stdin is not None
        print(json.dumps((command, arguments)), file=self._process.stdin, flush=True)

    def answer(self) -> Any:
        """The answer to the last command."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, command: str, **arguments: Any) -> Any:
        """Gives a command and waits for its answer."""
        self.tell(command, **arguments)
        return self.answer()

    def acquire(
        self,
        candidates: Sequence[str],
        count: int,
        *,
        timeout: float = DEADLINE,
        holder: str = "test",
        wait: bool = True,
    ) -> Any:
        """Leases in the process; without wait the answer is to be fetched later."""
        give = self.ask if wait else self.tell
        return give("acquire", candidates=list(candidates), count=count, timeout=timeout, holder=holder)

    def share(
        self,
        candidates: Sequence[str],
        count: int,
        *,
        timeout: float = DEADLINE,
        holder: str = "test",
        warm: Sequence[Sequence[str]] = (),
        wait: bool = True,
    ) -> Any:
        """Shares in the process; without wait the answer is to be fetched later."""
        give = self.ask if wait else self.tell
        return give("share", candidates=list(candidates), count=count, timeout=timeout, holder=holder, warm=list(warm))

    def start_child(self, how: str) -> int:
        """Lets the process start a child: by popen, fork_and_exec or fork."""
        pid = int(self.ask(how))
        self._children.append(pid)
        return pid

    def signal(self, number: int) -> None:
        """Sends a signal to the process."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Ends the process as the kernel does when memory is short; its children live on."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Ends the process and its children."""
        self.kill()
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
