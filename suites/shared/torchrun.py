"""Real torchrun agents for a test: each is a machine of the job, and is ended with all its processes.

torchrun is its own launcher, so a test of it has the plugin's ranks only to lease GPUs: ``visible_gpus`` says which.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, final

import torch.distributed as dist

from pytest_gpuperf import Context

LOOPBACK = "127.0.0.1"
DEADLINE = 300.0
"""Seconds for a job, many times what one needs: a busy machine must not fail a test."""
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Each attempt opens a store of its own. By default all attempts share the agent's store. There ranks find addresses of
the attempt before, so that no restart succeeds on gloo (torch 2.11 and 2.13; pytorch/pytorch#135712)."""
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""cuBLAS gives equal bits in each run only with a workspace of a fixed size (its manual, "Results Reproducibility")."""
WATCHDOG = {
    # Ends a rank whose collective has timed out without an abort of its communicator first. torchrun's own value is 1:
    # between the abort and the end the script goes on, with a sum that lacks a rank, and may save it.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    # Before the end it sleeps four times as long, so that flight recorders are written: by default 60 s. The second
    # interval is that in which the thread that writes them looks for its task: by default 1 s.
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "100",
    "TORCH_NCCL_COORD_CHECK_MILSEC": "100",
}
"""How NCCL's watchdog ends a rank; what the user has set comes first."""
_ROOT = Path(__file__).resolve().parents[2]
_GUARD = Path(__file__).with_name("guard.py")
_HELD = Path(__file__).with_name("held.py")
# Where NCCL's watchdog leaves the collectives of a rank that it ends, by the names old and new.
_TRACES = ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE")
_TAIL = 25  # lines of a failed job's output that its error shows
_LAST_WORDS = re.compile(r"^(?:\[rank\d+\]: ?)?((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit): .+)$", re.MULTILINE)


class TorchrunError(Exception):
    """A job under torchrun could not start, or did not end well."""


class TorchrunMissing(TorchrunError):
    """There is no torchrun to be run."""


class PortTaken(TorchrunError):
    """Somebody else listens where the job's machines are to meet."""


class TooFewGpus(TorchrunError):
    """A job has more ranks than there are GPUs for them."""


class JobFailed(TorchrunError):
    """torchrun ended with an error."""


class JobTimeout(TorchrunError):
    """A job did not end in time, and was ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What torchrun is to run, and how long it is to try."""

    script: Sequence[str]
    """The script with its arguments: ``("train.py", ...)``, or ``("-m", "package.train", ...)``."""
    ranks: int = 1
    """The number of ranks on each machine."""
    machines: str = "1"
    """How many there are: a number, or the fewest and the most, ``"1:2"``."""
    max_restarts: int = 0
    patience: Mapping[str, int] = field(default_factory=dict)
    """How long machines wait for each other: keys of ``--rdzv-conf``, in seconds, in place of those in ``PATIENCE``."""


PATIENCE: Mapping[str, int] = {
    "join_timeout": int(DEADLINE),
    # How long a world that is large enough waits for one more machine. A machine that waits looks once in a second.
    "last_call_timeout": 2,
    "keep_alive_interval": 1,
    "keep_alive_max_attempt": 4,  # so many intervals without a sign, and a machine is given up
}


def torchrun_path(path: str | None = None, python: str = sys.executable) -> str:
    """Returns the torchrun of this interpreter's environment, or else the first one on PATH.

    Args:
        path: folders to search, as PATH has them; None for PATH itself.
        python: the interpreter, beside which torch's installation puts torchrun.

    Raises:
        TorchrunMissing: there is none.
    """
    path = os.environ.get("PATH", "") if path is None else path
    found = shutil.which("torchrun", path=os.pathsep.join([str(Path(python).parent), path]))
    if found is None:
        raise TorchrunMissing(
            f"torchrun is neither beside {python} nor on PATH ({path or 'which is empty'}): it comes with torch, "
            f"so install torch there, {python} -m pip install torch, or add the folder that has torchrun to PATH"
        )
    return found


def visible_gpus(ctx: Context) -> str:
    """Returns the UUIDs of the GPUs that the test has leased, joined by commas; empty on CPUs. Runs on a rank."""
    return os.environ["CUDA_VISIBLE_DEVICES"]


@contextmanager
def meeting_place(port: int = 0) -> Iterator[str]:
    """Holds the store where a job's machines meet, and yields its address, ``127.0.0.1:PORT``.

    The store is this process's own, so it outlives each machine, and nobody can take its port meanwhile.

    Args:
        port: to listen at; 0 for one that is free.

    Raises:
        PortTaken: another process listens there.
    """
    listener = socket.socket()
    try:
        listener.bind((LOOPBACK, port))
        listener.listen()
    except OSError as error:
        listener.close()
        if error.errno != errno.EADDRINUSE:
            raise
        raise PortTaken(
            f"port {port} of {LOOPBACK} is taken, so the job's machines cannot meet there: pass port 0 for one that "
            f"is free, or end who has it: ss -ltnp 'sport = :{port}'"
        ) from None
    port = listener.getsockname()[1]
    store = dist.TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    try:
        yield f"{LOOPBACK}:{port}"
    finally:
        del store


@final
class Torchrun:
    """One machine of a job: a torchrun agent and its ranks. All of them end with the ``with`` statement.

    Raises:
        TorchrunMissing: there is no torchrun.
        TooFewGpus: the job has more ranks than there are GPUs.
    """

    def __init__(self, job: Job, *, meeting: str, log: Path, gpus: str = "", held: Path | None = None) -> None:
        """Starts the agent.

        Args:
            job: what it runs.
            meeting: the address of ``meeting_place``.
            log: a file for what the agent and its ranks print.
            gpus: those of this machine, as ``CUDA_VISIBLE_DEVICES`` has them; empty for CPUs.
            held: a file that the agent waits for before it joins the job; meanwhile it gets ready.
        """
        if gpus and (there := len(gpus.split(","))) < job.ranks:
            raise TooFewGpus(
                f"the job has {job.ranks} ranks on this machine, a GPU for each, but {there} are visible: ask for "
                f"ranks={there}, or lease more with @pytest.mark.ranks({job.ranks})"
            )
        self._job, self._log = job, log
        self._began = time.monotonic()
        patience = {"is_host": "false", **PATIENCE, **job.patience}
        agent = torchrun_path()
        command = [
            *([agent] if held is None else [sys.executable, "-P", str(_HELD), str(held)]),
            f"--nnodes={job.machines}",
            f"--nproc-per-node={job.ranks}",
            f"--max-restarts={job.max_restarts}",
            "--rdzv-backend=c10d",
            "--rdzv-id=suites",
            f"--rdzv-endpoint={meeting}",
            f"--rdzv-conf={','.join(f'{name}={value}' for name, value in patience.items())}",
            f"--local-addr={LOOPBACK}",
            "--monitor-interval=0.1",
            f"--log-dir={log}.d",
            *job.script,
        ]
        with log.open("wb") as output:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARD), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=_environ(gpus, log),
                start_new_session=True,  # ^C is pytest's: it ends the with statement
            )
        assert self._guard.stdout is not None
        self.pid = int(self._guard.stdout.readline())
        """The process id of the agent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.lose()

    @property
    def output(self) -> str:
        """What the agent and its ranks have printed so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def running(self) -> bool:
        """Whether the agent has not ended yet."""
        return self._guard.poll() is None

    def lose(self) -> None:
        """Ends the agent and its ranks at once, by SIGKILL, as a power failure does; returns when all are gone."""
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        self._guard.stdin.close()
        self._guard.wait()
        self._guard.stdout.close()

    def wait_until(self, happened: Callable[[], bool], what: str, timeout: float = DEADLINE) -> None:
        """Waits until something has happened while the job runs.

        Args:
            happened: says whether it has.
            what: it is, for the error.
            timeout: seconds.

        Raises:
            JobFailed: the job has ended.
            JobTimeout: it has not happened in time.
        """
        deadline = time.monotonic() + timeout
        while not happened():
            if not self.running:
                raise JobFailed(f"{self._name} ended before {what}{self._last_lines()}")
            if time.monotonic() > deadline:
                raise JobTimeout(f"{self._name} runs, but not {what} within {timeout:g} s{self._last_lines()}")
            time.sleep(0.05)

    def wait(self, timeout: float = DEADLINE) -> None:
        """Waits for the end of the job.

        Args:
            timeout: seconds since it was started.

        Raises:
            JobFailed: torchrun ended with an error.
            JobTimeout: it has not ended in time; it is ended now.
        """
        try:
            status = self._guard.wait(max(0.0, self._began + timeout - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.lose()
            raise JobTimeout(
                f"{self._name} has not ended within {timeout:g} s, and was ended; if it needs longer, pass a larger "
                f"timeout.{self._last_lines()}"
            ) from None
        if status:
            raised = _LAST_WORDS.findall(self.output)
            said = f": {raised[-1]}" if raised else ""
            raise JobFailed(
                f"{self._name} ended with status {status} instead of 0, with max_restarts={self._job.max_restarts}"
                f"{said}{self._last_lines()}"
            )

    @property
    def _name(self) -> str:
        return f"torchrun of {' '.join(self._job.script)}"

    def _last_lines(self) -> str:
        lines = self.output.splitlines()[-_TAIL:]
        return "\n".join([f"\nThe last lines of {self._log}:", *(f"  {line}" for line in lines)])


def _environ(gpus: str, log: Path) -> dict[str, str]:
    """What an agent and its ranks inherit: they import what this process imports, and talk over loopback."""
    traces = dict.fromkeys(_TRACES, f"{log}.trace-")
    inherited = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    defaults = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    return {
        **defaults,
        **WATCHDOG,
        **traces,
        **inherited,
        **OWN_STORE,
        **DETERMINISTIC,
        "CUDA_VISIBLE_DEVICES": gpus,
        "PYTHONPATH": path,
    }
