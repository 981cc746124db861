"""The controller's side of the forkserver: starts it, asks it for ranks, learns how they ended."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.connection import wait
from typing import IO, Any

from pytest_gpuperf.ranks.boot import FIND_INSTALLED_FIRST, make_command
from pytest_gpuperf.ranks.descent import MARK, kill_marked
from pytest_gpuperf.ranks.failures import LaunchError
from pytest_gpuperf.ranks.forkserver import LOAD, MAX_MESSAGE
from pytest_gpuperf.ranks.hash_seed import VARIABLE
from pytest_gpuperf.ranks.scene import read_module_path, read_working_directory
from pytest_gpuperf.torch_internals import DYNAMO

START_TIMEOUT = 300.0  # seconds; torch from a cold network disk takes minutes at worst

_CLOSE_TIMEOUT = 1.0  # seconds in which it kills its ranks; one that is still importing has none, and does not listen

# Imported once, before any fork. pytest is among them since test modules travel by value and import it.
PRELOAD = (
    "torch",
    "torch.distributed",
    "pytest",
    "pytest_gpuperf.ranks.rank",
    "pytest_gpuperf.timing.measure",
    "pytest_gpuperf.timing.compare",
    "pytest_gpuperf.timing.sweep",
)

# And these, which take a second or more each, once the tests or a rank have imported what stands before them: ranks
# will need what tests do, and what ranks before them did. Optimizers, DDP and checkpoints import torch._dynamo when
# they are first used. The debug module of DTensor is what caches.py asks to forget its meshes.
PRELOAD_IF_USED = {
    DYNAMO: DYNAMO,
    "torch.distributed.tensor": "torch.distributed.tensor.debug",
    "torch.distributed.tensor.parallel": "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining": "torch.distributed.pipelining",
    "torch.distributed.fsdp": "torch.distributed.fsdp",
}

# What fork() does not carry over must not be there yet when it is called.
_FORKABLE = {
    # The CUDA driver: torch asks it for the GPUs when some of its modules are imported, unless it is told
    # to ask NVML instead (torch/cuda/__init__.py, _nvml_based_avail).
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # Threads: OpenBLAS, which numpy brings along, starts one for each core as soon as it is loaded.
    "OPENBLAS_NUM_THREADS": "1",
}

_SOURCE = (
    FIND_INSTALLED_FIRST + "from pytest_gpuperf.ranks.forkserver import main; "
    "main(int(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4]))"
)


class ForkserverClient:
    """Forks ranks through a forkserver, which starts with the first one if it was not told to before.

    Args:
        preload: modules that the forkserver imports.
        preload_if_used: and these, by names of modules: if this process or a rank had imported such a one.
        hash_seed: the value of PYTHONHASHSEED for the forkserver and its ranks; empty for this process's own.
    """

    def __init__(
        self,
        preload: Sequence[str] = PRELOAD,
        preload_if_used: Mapping[str, str] | None = None,
        hash_seed: str = "",
    ) -> None:
        self._preload = tuple(preload)
        self._preload_if_used = dict(preload_if_used or {})
        self._hashes = {VARIABLE: hash_seed} if hash_seed else {}
        self._name = secrets.token_hex(8)
        self._mark = {MARK: f"{os.environ.get(MARK, '')}/{self._name}"}
        self._used_by_ranks: set[str] = set()
        self._told: set[str] = set()
        """The modules that the forkserver that there is was told to import."""
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._stderr: IO[bytes] | None = None
        self._children: set[int] = set()
        """Children of the present forkserver whose end is not known."""
        self._exit_codes: dict[int, int] = {}
        self._ready = False

    def start(self) -> None:
        """Has the forkserver begin with its imports; waits for nothing.

        Raises:
            OSError: there is no file descriptor, process or memory for it.
        """
        if self._control is not None:
            return
        self._ready = False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the forkserver
                self._process = self._spawn(theirs.fileno(), self._stderr)
            except OSError:
                self.close()
                raise

    def warm_up(self) -> None:
        """Has the forkserver import what is known by now to be needed, and start if it has not; waits for nothing.

        Raises:
            OSError: as ``start``.
        """
        self.start()
        if new := [name for name in self._list_wanted() if name not in self._told]:
            self._told.update(new)
            assert self._control is not None
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it is gone: fork() says so
                self._control.send(LOAD + json.dumps(new).encode())

    def fork(self, environ: Mapping[str, str], fds: Sequence[int]) -> int:
        """Forks a rank and returns its process id.

        Args:
            environ: the rank's whole environment.
            fds: its ends of the two connections, and its files for stdout, stderr and stacks.

        Raises:
            LaunchError: the forkserver is gone.
            OSError: there is no file descriptor, process or memory left, here or there.
        """
        control = self._start()
        hashes = {} if environ.get(VARIABLE) else self._hashes
        request = {
            "environ": {**environ, **hashes, **self._mark},
            "path": read_module_path(),
            "cwd": read_working_directory(),
            "modules": self._list_wanted(),
        }
        try:
            with tempfile.TemporaryFile() as file:  # an environment may be larger than a message
                file.write(json.dumps(request).encode())
                file.seek(0)
                socket.send_fds(control, [b"fork"], [file.fileno(), *fds])
            self._resume()
            while True:
                message = self._receive(START_TIMEOUT)
                if "refused" in message:
                    raise OSError(message["refused"], f"{os.strerror(message['refused'])} (in the forkserver)")
                if "forked" in message:
                    pid = int(message["forked"])
                    self._exit_codes.pop(pid, None)  # of an earlier process, where the kernel uses a number again
                    self._children.add(pid)
                    return pid
        except (BrokenPipeError, ConnectionResetError):
            raise self._close_gone() from None
        except TimeoutError:
            raise self._close_silent() from None

    @property
    def sockets(self) -> list[socket.socket]:
        """What becomes readable when a rank has ended; none where nothing was started."""
        return [] if self._control is None else [self._control]

    @property
    def would_preload(self) -> tuple[str, ...]:
        """Names of modules that are worth telling of, with ``note_used``."""
        return tuple(self._preload_if_used)

    def note_used(self, modules: Iterable[str]) -> None:
        """Takes note of what a rank had imported in the end: later ones find it there."""
        self._used_by_ranks.update(modules)

    def exit_code(self, pid: int, timeout: float) -> int | None:
        """How the rank ended: its exit code, minus the signal's number if one killed it.

        None if that is not known after ``timeout`` seconds; at once if nobody can tell any more, since the forkserver
        that forked it is gone.
        """
        if timeout > 0 and pid in self._children:
            self._resume()
        deadline = time.monotonic() + timeout
        while pid not in self._exit_codes:
            if pid not in self._children:
                return None
            try:
                self._receive(max(0.0, deadline - time.monotonic()))
            except (TimeoutError, LaunchError):
                return None
        return self._exit_codes[pid]

    def await_end(self, pid: int, timeout: float) -> None:
        """Waits until the rank has ended, so many seconds at most.

        The forkserver need not have told so: it may be in the middle of an import that takes seconds.
        """
        if pid not in self._children:
            return
        try:
            process = os.pidfd_open(pid)
        except OSError:  # it is gone, and that is about to be told; or there is no file descriptor left
            self.exit_code(pid, timeout)
            return
        try:
            wait([process], timeout)
        finally:
            os.close(process)

    def close(self) -> None:
        """Ends the forkserver, and with it every rank that still lives."""
        if self._control is not None:
            with contextlib.suppress(OSError):  # a forked child of this process may hold it too
                self._control.shutdown(socket.SHUT_RDWR)
            self._control.close()
            self._control = None
        self._children.clear()
        if self._process is not None:
            self._resume()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_CLOSE_TIMEOUT if self._ready else 0)
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGKILL)
                self._process.wait()
            if self._process.returncode != 0 and self._ready:  # it could not end what it had adopted
                kill_marked(self._name)
            self._process = None
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None

    def _spawn(self, control: int, output: IO[bytes]) -> subprocess.Popen[bytes]:
        self._told = set(self._list_wanted())
        modules = [*self._preload, *self._list_wanted()]
        return subprocess.Popen(
            make_command(_SOURCE, json.dumps(read_module_path()), str(control), json.dumps(modules), str(os.getpid())),
            env={**os.environ, **_FORKABLE, **self._hashes, **self._mark},
            pass_fds=[control],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C reaches pytest alone, which then ends the ranks itself
        )

    def _list_wanted(self) -> list[str]:
        return [
            name for used, name in self._preload_if_used.items() if used in sys.modules or used in self._used_by_ranks
        ]

    def _resume(self) -> None:
        # Somebody may have stopped it: it alone can fork, tell how ranks ended, and end what they started.
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def _start(self) -> socket.socket:
        self.start()
        assert self._control is not None
        if not self._ready:
            try:
                self._receive(START_TIMEOUT)
            except TimeoutError:
                raise self._close_silent() from None
            self._ready = True
        return self._control

    def _receive(self, timeout: float) -> dict[str, Any]:
        assert self._control is not None
        if not wait([self._control], timeout):
            raise TimeoutError
        data = self._control.recv(MAX_MESSAGE)
        if not data:
            raise self._close_gone()
        message: dict[str, Any] = json.loads(data)
        if "exited" in message:
            self._exit_codes[message["exited"]] = message["code"]
            self._children.discard(message["exited"])
        return message

    def _close_silent(self) -> LaunchError:
        self.close()
        return LaunchError(f"the forkserver that starts ranks did not answer within {START_TIMEOUT:g} s")

    def _close_gone(self) -> LaunchError:
        output = ""
        if self._stderr is not None:
            self._stderr.seek(0)
            output = self._stderr.read().decode(errors="replace").strip()
        self.close()
        return LaunchError(f"the forkserver that starts ranks ended unexpectedly; it printed: {output or 'nothing'}")
