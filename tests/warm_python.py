"""Processes forked from one that has imported torch: with these a small run of pytest costs tenths of a second.

Workers of xdist are such forks, too, and share that process.

To import torch is most of what such a run costs, and its forkserver imports it once more. Here both are forks of one
process, which has torch, numpy, pytest and its common plugins, but nothing of the plugin. A test of how a run imports,
hashes, or what environment variables do to torch needs new interpreters.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import inspect
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from select import select
from typing import TYPE_CHECKING, Any, NoReturn

_PRELOAD = (
    "torch",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.debug",
    "torch.distributed.tensor.parallel",
    "numpy.random",
    "pytest",
    "_pytest.pytester",
    "pygments.formatters.terminal",
    "hypothesis.strategies",
    "pdb",
    "pytest_benchmark.plugin",
    "cloudpickle",
    "execnet",
    "filelock",
    "xml.etree.ElementTree",
)
_PLUGINS = ("hypothesis", "_hypothesis_globals", "pytest_benchmark")
"""Packages whose assertions pytest would rewrite, and warns that it cannot where they are imported before it starts."""
_HYPOTHESIS_FOLDER = "__hypothesis_home_directory_default"
_FORKABLE = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "OPENBLAS_NUM_THREADS": "1"}  # as the plugin's own forkserver has it
# What an interpreter or torch reads as it starts. The plugin gives each forkserver a seed of hashes, its ranks have it.
_READ_AT_START = ("PYTHON", "TORCH", "PYTORCH", "OMP_", "OPENBLAS", "MKL", "KMP", "LD_", "LC_", "LANG", "MALLOC_")
_SET_HERE = ("PYTHONPATH", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE", "OMP_NUM_THREADS")
# Torch sets one of these in a process that compiles, Ray one in a worker, and launchers one in ranks.
_READ_LATER = ("TORCHINDUCTOR_", "PYTHONBREAKPOINT", "TORCHELASTIC_")
_HASHES = "PYTHONHASHSEED"
_MODULES = ("pytest", "pytest_gpuperf", "suites.table")
_SCRIPTS = ("benchmarks/mutations.py", "train.py")
_MAX_MESSAGE = 4096  # bytes; a request itself comes in a file
_MAX_FDS = 32
_START = 120.0  # seconds
NOTE = "GPUPERF_TEST_WARM_PYTHON"
"""A variable that names a file, in which another process finds what forks for this one; empty for nothing."""
FRESH: type[subprocess.Popen[Any]] = next(cls for cls in subprocess.Popen.__mro__ if cls.__module__ == "subprocess")
"""Starts new interpreters, whatever stands in its place."""

_EXECUTE_CHILD = inspect.signature(FRESH._execute_child)  # type: ignore[attr-defined]
_HELPER = "import sys; from importlib.util import module_from_spec"  # how ranks/boot.py begins
_WORKER = "import sys;exec(eval(sys.stdin.readline()))"  # as execnet starts a worker of xdist


class WarmPython:
    """A process that imports torch and forks; it ends with this one.

    Args:
        environ: what it starts with.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.address = f"gpuperf-warm-{os.getpid()}-{os.urandom(4).hex()}"
        self.environ = dict(environ)
        clean = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, self.address],
            env={**clean, **_FORKABLE},
            stdin=subprocess.PIPE,  # its end tells that this process has ended
        )

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def popen(self) -> type[ForkedPopen]:
        """Return a Popen by which what the process can run is forked."""
        return popen(self.address, self.environ)


if TYPE_CHECKING:
    _Fresh = subprocess.Popen[Any]
else:
    _Fresh = FRESH


class ForkedPopen(_Fresh):
    """Starts pytest, and commands and helpers of the plugin, as forks; everything else as ever."""

    address: str
    environ: Mapping[str, str]
    _ended: socket.socket | None = None

    def _execute_child(self, *args: Any) -> None:
        call = _EXECUTE_CHILD.bind(self, *args).arguments
        environ = dict(os.environ if call["env"] is None else call["env"])
        flags = _Flags.of(call["args"])
        if flags is None or call["preexec_fn"] or call["shell"] or not self._can_fork(environ, flags):
            super()._execute_child(*args)  # type: ignore[misc]
            return
        inherited = sorted(call["pass_fds"])
        request = {
            "flags": asdict(flags),
            "address": self.address,
            "environ": environ,
            "cwd": os.path.abspath(call["cwd"] or "."),
            "session": call["start_new_session"],
            "inherited": inherited,
            "parent": os.getpid(),
        }
        streams = [call["p2cread"], call["c2pwrite"], call["errwrite"]]
        fds = [given if given != -1 else ours for ours, given in enumerate(streams)]
        self.pid, self._ended = _fork(self.address, request, [*fds, *inherited])
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(call[end] for end in ends))  # type: ignore[attr-defined]

    def _can_fork(self, environ: Mapping[str, str], flags: _Flags) -> bool:
        here, there = environ, self.environ
        changed = {name for name in {*here, *there} if (here.get(name) or "") != (there.get(name) or "")}
        own = {*_SET_HERE, *_FORKABLE, *([_HASHES] if flags.how == "-c" else [])}
        return not any(name.startswith(_READ_AT_START) and not name.startswith(_READ_LATER) for name in changed - own)

    def _internal_poll(self, *args: Any, **kwargs: Any) -> int | None:
        if self._ended is None:
            return super()._internal_poll(*args, **kwargs)  # type: ignore[misc,no-any-return]
        return self._wait(0, raises=False)

    def _wait(self, timeout: float | None, raises: bool = True) -> int | None:
        if self._ended is None:
            return super()._wait(timeout)  # type: ignore[misc,no-any-return]
        if self.returncode is None:
            if select([self._ended], [], [], timeout)[0]:
                code = self._ended.recv(_MAX_MESSAGE)
                self._ended.close()
                self.returncode = json.loads(code) if code else -signal.SIGKILL  # with the process that forked it
            elif raises:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode


@dataclass(frozen=True, slots=True)
class _Flags:
    """What a command line asks of Python."""

    how: str
    """``-m``, ``-c``, or empty for a script."""
    what: str
    args: list[str]
    safe_path: bool
    unbuffered: bool
    warnings: list[str]

    @classmethod
    def of(cls, command: Any) -> _Flags | None:
        """Return what a command asks for, if it is one that can be forked."""
        if not isinstance(command, list) or command[0] != sys.executable:
            return None
        words = [os.fspath(word) for word in command[1:]]
        safe_path, unbuffered, warnings = False, False, []
        while words[:1] in (["-P"], ["-W"], ["-u"]):
            match words.pop(0):
                case "-P":
                    safe_path = True
                case "-u":
                    unbuffered = True
                case "-W":
                    warnings.append(words.pop(0))
        if words[:1] and words[0] in _SCRIPTS:
            words.insert(0, "")
        how, what, *args = [*words, "", ""]
        if (
            (how == "-m" and what in _MODULES)
            or (how == "-c" and (what == _WORKER or what.startswith(_HELPER)))
            or (how == "" and what in _SCRIPTS)
        ):
            return cls(how, what, args[:-2], safe_path, unbuffered, warnings)
        return None


def popen(address: str, environ: Mapping[str, str]) -> type[ForkedPopen]:
    """Return a Popen by which what the process at an address can run is forked.

    Args:
        address: of the process.
        environ: what it was started with.
    """
    return type("ForkedPopen", (ForkedPopen,), {"address": address, "environ": dict(environ)})


def note(popen: type[subprocess.Popen[Any]], folder: Path) -> dict[str, str]:
    """Notes in a file in the folder by what a Popen forks, if it does; returns the variable that names the file."""
    if not issubclass(popen, ForkedPopen):
        return {}
    file = folder / f"{popen.address}.json"
    file.write_text(json.dumps({"address": popen.address, "environ": dict(popen.environ)}))
    return {NOTE: str(file)}


def noted() -> type[subprocess.Popen[Any]]:
    """Return a Popen that forks by what the environment notes; one that starts new interpreters if it notes nothing."""
    file = os.environ.get(NOTE)
    return popen(**json.loads(Path(file).read_text())) if file else FRESH


def _fork(address: str, request: Mapping[str, Any], fds: Sequence[int]) -> tuple[int, socket.socket]:
    """Returns a new process's id and what becomes readable when it has ended."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        until = time.monotonic() + _START
        while connection.connect_ex("\0" + address):  # the process that forks has only just started
            if time.monotonic() > until:
                raise RuntimeError("the process that forks is gone")
            select([], [], [], 0.02)
        with tempfile.TemporaryFile() as file:
            file.write(json.dumps(request).encode())
            file.seek(0)
            socket.send_fds(connection, [b"fork"], [file.fileno(), *fds])
        return int(json.loads(connection.recv(_MAX_MESSAGE))), connection
    except BaseException:
        connection.close()
        raise


class _Server:
    def __init__(self, address: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind("\0" + address)
        self._listener.listen(64)
        self._pipe = os.pipe()
        for fd in self._pipe:
            os.set_blocking(fd, False)
        self._connections: dict[int, socket.socket] = {}
        """By the ids of the processes whose ends they tell."""

    def serve(self) -> None:
        """Forks until standard input ends."""
        wakeup, told = self._pipe
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(told)  # only now: what was preloaded may have set its own, or none
        selector = selectors.DefaultSelector()
        for source in (self._listener, wakeup, 0):
            selector.register(source, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if wakeup in ready:
                self._reap()
            if self._listener in ready:
                self._answer(selector)
            if 0 in ready:
                return

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._pipe[0], 4096)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                with self._connections.pop(ended[0]) as connection, contextlib.suppress(BrokenPipeError):
                    connection.send(json.dumps(os.waitstatus_to_exitcode(ended[1])).encode())

    def _answer(self, selector: selectors.BaseSelector) -> None:
        connection, _ = self._listener.accept()
        _, fds, _, _ = socket.recv_fds(connection, _MAX_MESSAGE, _MAX_FDS)
        if not fds:  # the client lacked a file descriptor
            connection.close()
            return
        with open(fds[0], "rb") as file:
            request = json.loads(file.read())
        pid = os.fork()
        if pid == 0:
            selector.close()
            signal.set_wakeup_fd(-1)
            for fd in self._pipe:
                os.close(fd)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in (self._listener, connection, *self._connections.values()):
                other.close()
            _become(request, fds[1:])
        for fd in fds[1:]:
            os.close(fd)
        self._connections[pid] = connection
        with contextlib.suppress(BrokenPipeError):  # a signal has ended who asked
            connection.send(json.dumps(pid).encode())


def _become(request: Mapping[str, Any], fds: Sequence[int]) -> NoReturn:
    code: Any = 1
    try:
        if request["session"]:
            os.setsid()
        _take(fds, [0, 1, 2, *request["inherited"]])
        os.environ.clear()
        os.environ.update(request["environ"])
        os.chdir(request["cwd"])
        tempfile.tempdir = None  # TMPDIR may be another one
        # Hypothesis chose its folder when it was imported.
        vars(sys.modules["hypothesis.configuration"])[_HYPOTHESIS_FOLDER] = Path(".hypothesis").absolute()
        flags = _Flags(**request["flags"])
        if flags.what != _WORKER:  # which does not ask, and whose tests would be told
            _believe_in(request["parent"])
        _set_path(request["environ"], flags)
        sys.dont_write_bytecode = bool(request["environ"].get("PYTHONDONTWRITEBYTECODE"))
        if threads := request["environ"].get("OMP_NUM_THREADS"):
            sys.modules["torch"].set_num_threads(int(threads))
        if flags.unbuffered:
            for stream in (sys.stdout, sys.stderr):
                stream.reconfigure(write_through=True)  # type: ignore[union-attr]
        for option in reversed(flags.warnings):
            warnings.simplefilter(option)  # type: ignore[arg-type]
            sys.warnoptions.append(option)
        subprocess.Popen = popen(request["address"], request["environ"])  # type: ignore[misc]
        if flags.how == "-m":
            sys.orig_argv[:] = [sys.executable, flags.how, flags.what, *flags.args]
            sys.argv[:] = [flags.what, *flags.args]
            runpy.run_module(flags.what, run_name="__main__", alter_sys=True)
        elif flags.how == "":
            sys.argv[:] = [flags.what, *flags.args]
            runpy.run_path(flags.what, run_name="__main__")
        else:
            sys.argv[:] = [flags.how, *flags.args]
            sys.modules["__main__"] = main = types.ModuleType("__main__")
            exec(compile(flags.what, "<string>", "exec"), main.__dict__)  # as python -c does
        code = 0
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:  # nobody is above to print it
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _set_path(environ: Mapping[str, str], flags: _Flags) -> None:
    first = [] if flags.safe_path or environ.get("PYTHONSAFEPATH") else [os.getcwd() if flags.how == "-m" else ""]
    sys.path[:0] = [*first, *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]


def _take(fds: Sequence[int], numbers: Sequence[int]) -> None:
    """Moves file descriptors to their numbers."""
    above = [os.dup2(fd, 1000 + place, inheritable=False) for place, fd in enumerate(fds)]
    for fd in fds:
        os.close(fd)
    for fd, number in zip(above, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)


def _believe_in(parent: int) -> None:
    """Has the next question for the parent answered by who asked for this process.

    Helpers end when it is gone. They learn that from a connection as well.
    """
    asked = os.getppid

    def getppid() -> int:
        os.getppid = asked
        return parent

    os.getppid = getppid


def _serve(address: str) -> None:
    gc.disable()
    server = _Server(address)
    for module in _PRELOAD:
        importlib.import_module(module)
    for package in _PLUGINS:
        sys.modules[package].__doc__ = "PYTEST_DONT_REWRITE"
    gc.enable()
    gc.collect()
    gc.freeze()
    assert len(os.listdir("/proc/self/task")) == 1, "a thread would be lost in what is forked"
    server.serve()


if __name__ == "__main__":
    _serve(sys.argv[1])
