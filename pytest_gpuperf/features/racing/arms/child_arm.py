"""An arm as its controller holds it: a process of pytest, that is asked for launches."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import TypeVar

from pytest_gpuperf.features.racing.arms.arm import Measured
from pytest_gpuperf.features.racing.arms.messages import Collected, Launch, Launched, Start
from pytest_gpuperf.ranks.boot import make_command
from pytest_gpuperf.ranks.channel import Channel
from pytest_gpuperf.repository import CannotRace

START_LIMIT = 600.0  # seconds; what tests import may come from a cold network disk

_CLOSE_TIMEOUT = 5.0  # seconds for an idle arm to end its ranks and itself
_TAIL = 2000  # characters of its output in a message
_SOURCE = (
    "import pytest_gpuperf.features.racing.arms.redirected; "  # before anything that might come from the repository
    "from pytest_gpuperf.features.racing.arms.child import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setting:
    """The place and the settings of an arm's process."""

    python: str
    """The interpreter."""
    directory: Path
    """Its working directory."""
    environ: Mapping[str, str]
    """Its whole environment."""
    log: Path
    """Receives what it prints."""
    start: Start
    unknown: Mapping[str, str]
    """Tests that it cannot have by node id, with the reason."""
    idle: bool
    """Whether it has none of the tests, so that there is nothing to collect."""


class ChildArm:
    """A process that collects tests once, and launches them on demand."""

    def __init__(self, name: str, setting: Setting, remove: Callable[[], None]) -> None:
        """Starts nothing.

        Args:
            name: what messages call the arm.
            setting: where and how its process runs.
            remove: removes its checkout.
        """
        self.name = name
        self.seconds = 0.0
        self._setting = setting
        self._remove = remove
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._ready = False
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The id of its process; None while there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Has the process begin to collect; waits for nothing.

        Raises:
            CannotRace: the process cannot be started.
        """
        setting = self._setting
        if self._process is not None or setting.idle:
            return
        self._channel, theirs = Channel.pair()
        try:
            with setting.log.open("ab") as log:
                self._process = subprocess.Popen(
                    make_command(_SOURCE, str(theirs.fileno()), str(os.getpid()), python=setting.python),
                    cwd=setting.directory,
                    env=setting.environ,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the arms itself
                )
        except OSError as error:
            raise CannotRace(
                f"{self.name}: its process cannot be started: got {error}: name a Python interpreter that runs here, "
                f"{setting.python} is none"
                if isinstance(error, (FileNotFoundError, PermissionError))
                else f"{self.name}: its process cannot be started: got {error}: free memory, processes or descriptors"
            ) from error
        finally:
            theirs.close()
        self._send(setting.start)

    def ready(self, limit: float = START_LIMIT) -> None:
        """Waits until the tests are collected.

        Args:
            limit: seconds.

        Raises:
            CannotRace: the process ended, or took longer.
        """
        self.start()
        if not self._ready and not self._setting.idle:
            self._answer(Collected, limit, "collecting its tests")
            self._ready = True

    def launch(self, tests: Sequence[str], limit: float) -> Mapping[str, Measured]:
        """Runs each test once, all of them in one set of fresh processes and communicators.

        Args:
            tests: node ids.
            limit: seconds that the whole launch may take; collecting is not among it.

        Raises:
            CannotRace: the process ended, took longer, or had other code than it should.
        """
        known = tuple(test for test in tests if test not in self._setting.unknown)
        missing = {test: Measured(problem=self._setting.unknown[test]) for test in tests if test not in known}
        if not known:
            return missing
        self.ready()
        began = time.monotonic()
        self._send(Launch(known))
        answer = self._answer(Launched, limit, f"launching {len(known)} test{'s' if len(known) > 1 else ''}")
        self.seconds = time.monotonic() - began
        if answer.stray:
            self.kill()
            raise CannotRace(
                f"void: {answer.stray} where {self.name} ran, which is a file of the present code: the metrics are of "
                "neither: have the tests find files by their own place (`Path(__file__).parent`), by no absolute path"
            )
        return {**answer.results, **missing}

    def close(self) -> None:
        """Ends the process and its ranks, and removes the checkout; a second time it does nothing."""
        if self._closed:
            return
        self._closed = True
        self.hang_up()
        if self._process is not None and self._ready:  # one that still collects has no ranks, and listens to nobody
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSE_TIMEOUT)
        self.kill()
        self._remove()

    def hang_up(self) -> None:
        """Tells the process to end; waits for nothing."""
        if self._channel is not None:
            self._channel.hang_up()
            self._channel = None

    def kill(self) -> None:
        """Ends the process at once, with what it has started; its forkserver then ends the ranks."""
        self.hang_up()
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _send(self, message: object) -> None:
        with contextlib.suppress(OSError):  # it has ended, which is seen when its answer is awaited
            self._open().send(message)

    def _open(self) -> Channel:
        if self._channel is None:
            raise CannotRace(f"{self.name}: its process was ended before: open the arm anew")
        return self._channel

    def _answer(self, kind: type[T], limit: float, what: str) -> T:
        assert self._process is not None
        channel = self._open()
        try:
            answer = _receive(channel, self._process, limit)
        except TimeoutError:
            self.kill()
            raise CannotRace(
                f"{self.name} took more than {limit:g} s for {what}: a test hangs, or is slower than the race allows"
                f"{self._read_printed()}"
            ) from None
        except (EOFError, OSError):
            code = self._await_end()
            raise CannotRace(
                f"{self.name}: its pytest ended with exit code {code} while {what}: run its tests alone, in a "
                f"checkout of that code{self._read_printed()}"
            ) from None
        except BaseException:  # Ctrl-C: nobody will ask for the answer that is under way
            self.kill()
            raise
        assert isinstance(answer, kind)
        return answer

    def _await_end(self) -> int:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_TIMEOUT)
        self.kill()
        return self._process.wait()

    def _read_printed(self) -> str:
        try:
            text = self._setting.log.read_text(errors="replace").strip()
        except OSError:
            text = ""
        if len(text) > _TAIL:
            text = text[-_TAIL:].partition("\n")[2] or text[-_TAIL:]  # from the beginning of a line
        return f"; it printed last:\n{text}" if text else "; it printed nothing"


def _receive(channel: Channel, process: subprocess.Popen[bytes], limit: float) -> object:
    # A process that the arm forked may hold its end of the channel: so its death is watched for as well.
    descriptor = os.pidfd_open(process.pid)
    try:
        ready = wait([channel.fileno(), descriptor], limit)
        if not ready:
            raise TimeoutError
        if channel.fileno() not in ready and not channel.poll(0):
            raise EOFError
        message, _ = channel.receive()
        return message
    finally:
        os.close(descriptor)
