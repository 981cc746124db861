"""A world of live ranks: starts them, sends them programs, waits for all of them at once."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import IO, Any

from pytest_gpuperf.ranks.failures import Died, LaunchError, Outcome, Stuck, World, raise_root_cause
from pytest_gpuperf.ranks.launcher import Launcher
from pytest_gpuperf.ranks.messages import OpenGroup, Raised, Returned, Run, Start, Started

START_TIMEOUT = 120.0  # seconds for all ranks to report in; CUDA contexts on 8 GPUs take some of them
GRACE = 2.0  # seconds that the others get after the first failure: time to fail too, and to be asked where they are
GROUP_TIMEOUT = 60.0  # seconds to leave the old group and open a new one; 1.5 s is usual on 8 GPUs
COLLECTIVE_MARGIN = 120.0  # seconds beyond the run's timeout after which a backend may give up by itself
_STACKS_TIMEOUT = 0.5  # seconds for faulthandler to write; it needs a running kernel, not a running interpreter
_CURRENT_TEST = "PYTEST_CURRENT_TEST"  # set anew by pytest for each phase of each test: nothing of a rank's
_RANK_MAIN = "pytest_gpuperf/ranks/rank.py"
_EXIT_TIMEOUT = 5.0  # seconds from a closed connection to the report of the exit


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """What makes two tests share a pool."""

    world_size: int
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs, one for each rank; empty for gloo."""

    @property
    def backend(self) -> str:
        """``nccl`` on GPUs, ``gloo`` without."""
        return "nccl" if self.gpus else "gloo"


@dataclass(slots=True)
class _Process:
    pid: int
    connection: Connection[Any, Any]
    stdout: IO[bytes]
    stderr: IO[bytes]
    stacks: IO[bytes]
    seen: dict[str, int] = field(default_factory=lambda: {"stdout": 0, "stderr": 0})


class Pool:
    """Ranks that stay alive between runs. Anything unclean in a run ends the pool or renews its group."""

    def __init__(self, launcher: Launcher, spec: PoolSpec, environ: Mapping[str, str]) -> None:
        """Starts the ranks.

        Raises:
            LaunchError: a rank did not come up; names it, and what it printed.
        """
        self.spec = spec
        self.alive = True
        self._launcher = launcher
        self._group: str | None = None
        self._runs = 0
        self.environ = rank_environ(spec, environ)
        self._processes: list[_Process] = []
        self._last_output: list[tuple[int, str, str]] = []
        try:
            self._store_port = self._start(self.environ)
        except BaseException:
            self.kill()
            raise

    def open_group(self, name: str, timeout: float) -> None:
        """Gives the ranks a process group of this name, unless they have it already."""
        if self._group == name:
            return
        self._group = None
        self._runs += 1
        request = OpenGroup(self._runs, f"{self._runs}/{name}", self._store_port, timeout + COLLECTIVE_MARGIN)
        self._exchange([request] * self.spec.world_size, "opening the process group", GROUP_TIMEOUT)
        self._group = name

    def run(self, task: bytes, *, program: str, seed: int, timeout: float) -> list[bytes]:
        """Sends the task to every rank and returns their payloads in rank order.

        Raises:
            BaseException: what the program raised on the rank that failed first, or a RankError.
        """
        __tracebackhide__ = True
        self._runs += 1
        return self._exchange([Run(self._runs, task, seed)] * self.spec.world_size, program, timeout)

    def output(self) -> list[tuple[int, str, str]]:
        """What the ranks printed since the last call: rank, stream, text."""
        printed, self._last_output = self._last_output, []
        for rank, process in enumerate(self._processes):
            for stream in ("stdout", "stderr"):
                text = _read_new(process, stream)
                if text:
                    printed.append((rank, stream, text))
        return printed

    def close(self) -> None:
        """Ends the ranks: asks first, then kills."""
        for process in self._processes:
            process.connection.close()
        for process in self._processes:
            # NCCL ranks may wait for one another in their exit handlers; nothing of theirs is needed any more.
            self._launcher.exit_code(process.pid, 0.2 if self.spec.gpus else 1.0)
        self.kill()

    def kill(self) -> None:
        """Ends the ranks at once, with everything they started."""
        self.alive = False
        for process in self._processes:
            if self._launcher.exit_code(process.pid, 0) is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            self._launcher.exit_code(process.pid, _EXIT_TIMEOUT)
        self._last_output = self.output()
        for process in self._processes:
            process.connection.close()
            for file in (process.stdout, process.stderr, process.stacks):
                file.close()
        self._processes = []

    def _start(self, environ: Mapping[str, str]) -> int:
        size = self.spec.world_size
        threads = max(1, (os.cpu_count() or 1) // size)
        for _ in range(size):
            self._processes.append(self._fork(environ))
        for rank, process in enumerate(self._processes):
            process.connection.send(Start(rank, size, self.spec.backend, threads))
        deadline = time.monotonic() + START_TIMEOUT
        port: int | None = None
        for rank, process in enumerate(self._processes):
            if not process.connection.poll(max(0.0, deadline - time.monotonic())):
                raise self._not_started(rank, f"did not start within {START_TIMEOUT:g} s")
            try:
                started = process.connection.recv()
            except (EOFError, ConnectionResetError):
                raise self._not_started(rank, "ended while it started") from None
            assert isinstance(started, Started)
            port = port if started.store_port is None else started.store_port
        assert port is not None
        return port

    def _fork(self, environ: Mapping[str, str]) -> _Process:
        ours, theirs = Pipe()
        stdout, stderr, stacks = (tempfile.TemporaryFile() for _ in range(3))  # noqa: SIM115  # the process's own
        with theirs:
            fds = [theirs.fileno(), stdout.fileno(), stderr.fileno(), stacks.fileno()]
            return _Process(self._launcher.fork(environ, fds), ours, stdout, stderr, stacks)

    def _not_started(self, rank: int, what: str) -> LaunchError:
        printed = _read_new(self._processes[rank], "stderr").strip()
        return LaunchError(
            f"rank {rank} of {self.spec.world_size} ({self.spec.backend}) {what}; it printed: {printed or 'nothing'}"
        )

    def _exchange(self, requests: Sequence[OpenGroup | Run], program: str, timeout: float) -> list[bytes]:
        __tracebackhide__ = True
        try:
            outcomes = self._gather(requests, timeout)
        except BaseException:  # Ctrl-C: the ranks are somewhere in the middle
            self.kill()
            raise
        payloads = [outcome.payload for outcome in outcomes if isinstance(outcome, Returned)]
        if len(payloads) == len(outcomes):
            return payloads
        self._group = None  # ranks that disagreed on what to do next may disagree on the group's state
        if not all(isinstance(o, Returned) or (isinstance(o, Raised) and o.usable) for o in outcomes):
            self.kill()
        raise_root_cause(outcomes, World(self.spec.world_size, self.spec.backend, program, timeout))

    def _gather(self, requests: Sequence[OpenGroup | Run], timeout: float) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        waiting: dict[Connection[Any, Any], int] = {}
        for rank, (process, request) in enumerate(zip(self._processes, requests, strict=True)):
            try:
                process.connection.send(request)
            except (BrokenPipeError, ConnectionResetError):
                outcomes[rank] = self._died(rank)
            else:
                waiting[process.connection] = rank
        deadline = time.monotonic() + timeout
        while waiting:
            ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                outcomes.update(self._give_up(list(waiting.values())))
                break
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = waiting[connection]
                outcome = self._read(connection, rank, requests[rank].run)
                if outcome is None:
                    continue
                del waiting[connection]
                outcomes[rank] = outcome
                if not isinstance(outcome, Returned):
                    deadline = min(deadline, time.monotonic() + GRACE)
        return [outcomes[rank] for rank in range(self.spec.world_size)]

    def _read(self, connection: Connection[Any, Any], rank: int, run: int) -> Outcome | None:
        try:
            reply = connection.recv()
        except (EOFError, OSError):  # OSError too: the end may come in the middle of a message
            return self._died(rank)
        # A reply to another run cannot be taken for this one's.
        return reply if isinstance(reply, (Returned, Raised)) and reply.run == run else None

    def _died(self, rank: int) -> Died:
        at = time.monotonic()
        return Died(at, self._launcher.exit_code(self._processes[rank].pid, _EXIT_TIMEOUT))

    def _give_up(self, ranks: Sequence[int]) -> dict[int, Outcome]:
        at = time.monotonic()
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._processes[rank].pid, signal.SIGUSR1)
        until = time.monotonic() + _STACKS_TIMEOUT
        while time.monotonic() < until and not all(_size(self._processes[r].stacks) for r in ranks):
            time.sleep(0.01)  # no event tells that another process has written to a file
        time.sleep(0.05)  # a dump is several writes
        return {rank: Stuck(at, _stacks(self._processes[rank])) for rank in ranks}


def rank_environ(spec: PoolSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the pool's ranks: the controller's, its own GPUs, loopback for the sockets.

    What the user set stays: the socket interfaces are only defaults.
    """
    loopback = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    inherited = {name: value for name, value in environ.items() if name != _CURRENT_TEST}
    return {**loopback, **inherited, "CUDA_VISIBLE_DEVICES": ",".join(spec.gpus)}


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def _stacks(process: _Process) -> str:
    text = os.pread(process.stacks.fileno(), _size(process.stacks), 0).decode(errors="replace").strip()
    lines = text.splitlines()
    # Below the rank's own main there is nothing of the author's.
    cut = next((index for index, line in enumerate(lines) if _RANK_MAIN in line), len(lines))
    return "\n".join(lines[:cut] if cut > 1 else lines) or "(no stack could be had)"


def _read_new(process: _Process, stream: str) -> str:
    file = process.stdout if stream == "stdout" else process.stderr
    size = _size(file)
    data = os.pread(file.fileno(), size - process.seen[stream], process.seen[stream])
    process.seen[stream] = size
    return data.decode(errors="replace")
