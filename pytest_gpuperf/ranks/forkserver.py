"""The forkserver: a process that imported torch once and forks ranks in milliseconds.

Runs in a process of its own, started by ``forkserver_client``. It never initialises CUDA and starts no
thread pool, since neither survives a fork. It is the ranks' parent, so it alone learns how they ended,
and tells the controller. When the controller goes, however it goes, the socket between them closes, and
the forkserver kills every rank and leaves; when the forkserver itself goes, the kernel kills the ranks.

It adopts what an ended rank leaves behind, and kills it: also a process that started a session of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import importlib
import json
import os
import select
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from pytest_gpuperf.ranks.boot import FIND_INSTALLED_FIRST, make_command
from pytest_gpuperf.ranks.channel import Channel
from pytest_gpuperf.ranks.descent import adopt_orphans, list_children
from pytest_gpuperf.ranks.hash_seed import VARIABLE

MAX_MESSAGE = 4096  # bytes; what is larger, a rank's environment say, comes in a file
NUM_FDS = 6  # of a request: the file that holds it, then connection, inquiries, stdout, stderr, stacks
LOAD = b"load "
"""Begins a request that brings no files: names of modules to import."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_CLEARING = 10.0  # seconds in which all that ranks started has to end; a controller that lives waits for one
_FRESH = (
    FIND_INSTALLED_FIRST + "from pytest_gpuperf.ranks.forkserver import become_rank; "
    "become_rank(json.loads(sys.argv[2]), json.loads(sys.argv[1]), json.loads(sys.argv[3]))"
)
"""Runs a rank whose first argument is the path."""


def main(fd: int, modules: Sequence[str], controller: int) -> NoReturn:
    """Imports the modules and forks ranks until the controller is gone.

    Args:
        fd: socket to the controller.
        modules: what to import before the first fork.
        controller: its process id.
    """
    # While it imports it listens to nobody, and there is nobody else to end yet.
    _die_with_parent(controller)
    control = socket.socket(fileno=fd)
    _preload(modules)
    adopt_orphans()
    _wake_when_parent_dies()  # to end the ranks first, with what they started; the socket tells when
    _Forkserver(control, controller, modules).serve()
    _flush()
    os._exit(0)  # to take torch down in order would take longer than all else here, and pytest waits


def become_rank(fds: Sequence[int], path: Sequence[str], modules: Sequence[str]) -> NoReturn:
    """Serves as a rank in a fresh interpreter, which a forked process has become.

    Args:
        fds: the connection, that for inquiries, and the file for stacks.
        path: ``sys.path`` of the rank.
        modules: what to import before.
    """
    _preload(modules)
    sys.path[:] = path
    code = 1
    try:
        _serve_as_rank(*fds)
        code = 0
    except BaseException:  # nobody is above to print it
        traceback.print_exc()
    _flush()
    os._exit(code)


class _Forkserver:
    def __init__(self, control: socket.socket, controller: int, modules: Sequence[str]) -> None:
        self._control = control
        self._modules = list(modules)
        self._hash_seed = os.environ.get(VARIABLE, "")
        self._controller: int | None = None
        """Becomes readable when the controller has ended: a child that it forked may hold the socket open."""
        with contextlib.suppress(OSError):  # a kernel without it, or the controller is gone, which the socket tells
            self._controller = os.pidfd_open(controller)
        self._children: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._wakeup_read, self._wakeup_write = os.pipe()
        for fd in (self._wakeup_read, self._wakeup_write):
            os.set_blocking(fd, False)
        # A handler must be set for the wake-up byte to be written at all.
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller decides what Ctrl-C means
        signal.set_wakeup_fd(self._wakeup_write)

    def serve(self) -> None:
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._wakeup_read, selectors.EVENT_READ)
        if self._controller is not None:
            self._selector.register(self._controller, selectors.EVENT_READ)
        self._send({"ready": os.getpid()})
        try:
            while True:
                ready = {key.fileobj for key, _ in self._selector.select()}
                if self._wakeup_read in ready:
                    self._reap()
                if self._controller in ready or (self._control in ready and not self._answer()):
                    return
        finally:
            self._clear()

    def _send(self, message: dict[str, Any]) -> None:
        # A controller that is gone is seen at the next read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._control.send(json.dumps(message).encode())

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup_read, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return  # there is none
            if pid == 0:
                break
            if pid in self._children:
                self._children.remove(pid)
                _kill_orphans(pid)  # what the rank started goes with it
                self._send({"exited": pid, "code": os.waitstatus_to_exitcode(status)})
        # Those that left the rank's group. As long as ranks live, they adopt their own orphans. When one that is
        # killed here ends, its children come here, and a signal tells.
        self._kill_adopted()

    def _kill_adopted(self) -> bool:
        """Kills children that ranks started; returns whether there are any, or ranks."""
        # What an imported module started is in the forkserver's own session. Each rank has one of its own.
        adopted = [pid for pid in list_children() if pid not in self._children and os.getsid(pid) != os.getsid(0)]
        for pid in adopted:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        return bool(adopted or self._children)

    def _clear(self) -> None:
        for pid in self._children:
            _kill_group(pid)
        until = time.monotonic() + _CLEARING
        while time.monotonic() < until:
            self._reap()
            if not self._kill_adopted():
                return
            select.select([self._wakeup_read], [], [], max(0.0, until - time.monotonic()))

    def _answer(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self._control, MAX_MESSAGE, NUM_FDS, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return False
        if not data:
            return False
        if data.startswith(LOAD):
            with contextlib.suppress(OSError):  # the fork loads it again, or is refused
                _load(json.loads(data.removeprefix(LOAD)))
            return True
        try:
            if len(fds) < NUM_FDS:  # the kernel drops what a process has no descriptor for
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self._fork(fds)
        except OSError as error:
            self._send({"refused": error.errno})
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _fork(self, fds: list[int]) -> None:
        with open(fds[0], "rb", closefd=False) as file:
            request = json.loads(file.read())
        _load([name for name in request["modules"] if name not in sys.modules])
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self._become_rank(server, request, fds[1:])
                code = 0
            except BaseException:  # nobody is above to print it
                traceback.print_exc()
            finally:
                # Never back into the server's loop, and none of its atexit handlers.
                _flush()
                os._exit(code)
        self._children.add(pid)
        self._send({"forked": pid})

    def _become_rank(self, server: int, request: dict[str, Any], fds: list[int]) -> None:
        os.setsid()
        adopt_orphans()  # so that a test's end finds them here, and not in the forkserver
        _die_with_parent(server)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        for fd in (self._wakeup_read, self._wakeup_write, self._controller):
            if fd is not None:
                os.close(fd)
        self._control.close()
        self._selector.close()
        connection, inquiries, stdout, stderr, stacks = fds
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.close(stdout)
        os.close(stderr)
        os.environ.clear()
        os.environ.update(request["environ"])
        with contextlib.suppress(OSError):  # a test may have removed the directory it ran in
            os.chdir(request["cwd"])
        if os.environ.get(VARIABLE, "") != self._hash_seed:  # Python reads it as it starts
            modules = [*self._modules, *request["modules"]]
            _start_afresh([connection, inquiries, stacks], request["path"], modules)
        sys.path[:] = request["path"]
        _serve_as_rank(connection, inquiries, stacks)


def _start_afresh(fds: list[int], path: list[str], modules: list[str]) -> NoReturn:
    for fd in fds:
        os.set_inheritable(fd, True)
    program = make_command(_FRESH, json.dumps(path), json.dumps(fds), json.dumps(modules))
    os.execv(program[0], program)


def _serve_as_rank(connection: int, inquiries: int, stacks: int) -> None:
    sys.argv[:] = ["rank"]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]

    from pytest_gpuperf.ranks.rank import main as rank_main

    rank_main(Channel.of(connection), Channel.of(inquiries), stacks)


def _preload(modules: Sequence[str]) -> None:
    _load(modules)
    if "numpy" in sys.modules:
        _load(["numpy.random"])  # numpy imports it when it is first used: too late for a run's seed


def _load(modules: Sequence[str]) -> None:
    if not modules:
        return
    gc.disable()  # hardly anything of what is imported is garbage, and to look takes a tenth of the time
    for module in modules:
        # A module that this torch lacks is imported by the program that wants it, or fails there.
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.enable()
    gc.collect()
    gc.freeze()  # what is imported stays out of the ranks' collections, and their pages stay shared


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a broken stream must not keep a rank from leaving
            stream.flush()


def _kill_orphans(group: int) -> None:
    # The leader is reaped; its pid stays taken while the group has members, so none is hit by mistake.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _kill_group(pid: int) -> None:
    # A rank leads its own process group (setsid); before it has got there, it is killed alone.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _wake_when_parent_dies() -> None:
    # A process that goes on already takes no notice; one that somebody stopped would outlive its parent.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def _die_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died between the fork and the call above
        os._exit(1)
