"""One rank's process as the controller holds it: its connections, and the files that it writes."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from pytest_gpuperf.ranks import stacks
from pytest_gpuperf.ranks.channel import Channel, Letter
from pytest_gpuperf.ranks.excerpt import HEAD, TAIL, Excerpt
from pytest_gpuperf.ranks.forkserver_client import ForkserverClient

# What libstdc++'s std::terminate prints. The exceptions of threads that NCCL and gloo started end a process so; two
# threads may write at once.
_TERMINATED = re.compile(r"terminate called after throwing an instance of .*\n(?:.*\n){0,9}?[ \t]*what\(\):[ \t]*(.*)")
# What torch's watchdog of NCCL prints before it throws, if another thread ends the process meanwhile.
_WATCHED = re.compile(r"watchdog thread terminated with exception: (.*)")
_WORDS = 500  # characters of it that are told
_FATAL = "Fatal Python error: "  # what faulthandler begins its report of a fatal signal with
_TAIL = 1 << 20  # bytes of standard error in which those are looked for

_PIECE = 1 << 20  # bytes of what was printed that are read at once

STREAMS = ("stdout", "stderr")
FILES = 5  # that this process has open for each rank
EXIT_TIMEOUT = 5.0  # seconds from the end of a process to the report of it


@dataclass(slots=True)
class RankProcess:
    """A process that was forked and may have ended since."""

    pid: int
    connection: Channel
    """For requests."""
    inquiries: Channel
    """For what is asked while a program runs."""
    stdout: IO[bytes]
    stderr: IO[bytes]
    stacks: IO[bytes]
    """Receives the stacks of all threads on SIGUSR1."""
    main_thread: int = 0
    _run_began_at: int = 0
    """Byte of its standard error."""
    _seen: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STREAMS, 0))
    _decoders: Mapping[str, codecs.IncrementalDecoder] = field(
        default_factory=lambda: {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in STREAMS}
    )

    @classmethod
    def fork(cls, client: ForkserverClient, environ: Mapping[str, str]) -> RankProcess:
        """A new one.

        Raises:
            LaunchError: the forkserver cannot start, or is gone.
            OSError: there is no file descriptor, process or memory left.
        """
        with contextlib.ExitStack() as failing, contextlib.ExitStack() as handed_over:

            def connect() -> tuple[Channel, Channel]:
                ours, theirs = Channel.pair()
                failing.callback(ours.close)
                handed_over.callback(theirs.close)
                return ours, theirs

            def file() -> IO[bytes]:
                return failing.enter_context(tempfile.TemporaryFile())

            (ours, theirs), (asking, asked) = connect(), connect()
            stdout, stderr, dumps = file(), file(), file()
            for stream in (stdout, stderr):  # a rank may truncate them
                fcntl.fcntl(stream, fcntl.F_SETFL, fcntl.fcntl(stream, fcntl.F_GETFL) | os.O_APPEND)
            fds = [theirs.fileno(), asked.fileno(), stdout.fileno(), stderr.fileno(), dumps.fileno()]
            process = cls(client.fork(environ, fds), ours, asking, stdout, stderr, dumps)
            failing.pop_all()
        return process

    def read_printed(self, stream: str) -> Excerpt:
        """What is to be shown of what it printed on ``stdout`` or ``stderr`` since the last look."""
        fd, start, end = self._take_unseen(stream)
        if start == end:
            return Excerpt()
        if end - start <= HEAD + TAIL:
            front = back = os.pread(fd, end - start, start)
        else:
            front, back = os.pread(fd, HEAD, start), os.pread(fd, TAIL, end - TAIL)
        return Excerpt.cut(end - start, front, back)

    def read_printed_whole(self, stream: str) -> Iterator[str]:
        """All that it printed since the last look, in pieces; of half a character nothing until the rest is there."""
        fd, start, end = self._take_unseen(stream)
        while start < end and (data := os.pread(fd, min(_PIECE, end - start), start)):
            start += len(data)
            if text := self._decoders[stream].decode(data):
                yield text

    def _take_unseen(self, stream: str) -> tuple[int, int, int]:
        """File descriptor, first byte and end of what nobody has looked at, which is from now on seen."""
        file = self.stdout if stream == "stdout" else self.stderr
        size = _read_size(file)
        seen = self._seen[stream] if self._seen[stream] <= size else 0  # as open("/dev/stdout", "w") leaves it
        self._seen[stream] = size
        return file.fileno(), seen, size

    def last_words(self) -> str:
        """The first line of the C++ exception that ended it, as its standard error tells; empty if none did."""
        text = self._read_run_stderr()
        found = _TERMINATED.findall(text) or _WATCHED.findall(text)
        return "".join(char if char.isprintable() else " " for char in found[-1][:_WORDS]).strip() if found else ""

    def read_last_stack(self) -> str:
        """The main thread's stack, and others', that faulthandler printed at a fatal signal; empty if it did not."""
        _, fatal, dump = self._read_run_stderr().rpartition(_FATAL)
        return stacks.cut(dump, self.main_thread) if fatal else ""

    def send(self, request: Letter) -> None:
        """Sends it a request; what it printed before is no part of what it prints from now on.

        Raises:
            OSError: it has ended.
        """
        size = _read_size(self.stderr)
        self.connection.post(request)
        self._run_began_at = size

    def _read_run_stderr(self) -> str:
        size = _read_size(self.stderr)
        start = max(self._run_began_at if self._run_began_at <= size else 0, size - _TAIL)
        return os.pread(self.stderr.fileno(), _TAIL, start).decode(errors="replace")

    @property
    def has_dumped(self) -> bool:
        """Whether it has begun to write its stacks."""
        return _read_size(self.stacks) > 0

    def stack(self) -> str:
        """What it has written of them, the main thread's first; or why it has not."""
        if not self.has_dumped:
            return stacks.describe_absent(self._read_state())
        dump = os.pread(self.stacks.fileno(), _read_size(self.stacks), 0).decode(errors="replace")
        return stacks.cut(dump, self.main_thread)

    def _read_state(self) -> str:
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return ""

    def close(self) -> None:
        """Closes connections and files; the process is not asked."""
        self.connection.hang_up()
        self.inquiries.hang_up()
        for file in (self.stdout, self.stderr, self.stacks):
            file.close()


def kill(client: ForkserverClient, processes: Sequence[RankProcess]) -> None:
    """Ends processes at once, with everything that they started, and waits for their ends."""
    for process in processes:
        if client.exit_code(process.pid, 0) is None:
            _kill_group(process.pid)
    await_ends(client, processes, EXIT_TIMEOUT)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # it leads no group yet: Ctrl-C may come right after the fork
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    except PermissionError:
        pass


def await_ends(client: ForkserverClient, processes: Sequence[RankProcess], timeout: float) -> None:
    """Waits until all of them have ended, for so many seconds together."""
    deadline = time.monotonic() + timeout
    for process in processes:
        client.await_end(process.pid, max(0.0, deadline - time.monotonic()))


def _read_size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size
