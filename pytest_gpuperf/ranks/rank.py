"""The rank's own main: answers the controller's requests one after another. Runs in rank processes.

It knows neither pytest nor what it runs: a task names its own entry function.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from types import TracebackType

import torch
import torch.distributed as dist

from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks.context import Context
from pytest_gpuperf.ranks.messages import OpenGroup, Raised, Reply, Request, Returned, Run, Start, Started

LOOPBACK = "127.0.0.1"


class ResultNotPicklable(TypeError):
    """A program returned something that cannot leave its process."""


def main(connection: Connection, stacks_fd: int) -> None:
    """Serves the controller until it closes the connection.

    Args:
        connection: to the controller.
        stacks_fd: file that receives the stacks of all threads on SIGUSR1, with or without the GIL.
    """
    faulthandler.enable(file=sys.stderr, all_threads=True)
    faulthandler.register(signal.SIGUSR1, file=stacks_fd, all_threads=True, chain=False)
    with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
        start = connection.recv()
        rank = _Rank(start)
        connection.send(Started(rank.store_port))
        while True:
            reply = rank.answer(connection.recv())
            _flush_output()
            connection.send(reply)


class _Rank:
    def __init__(self, start: Start) -> None:
        self._start = start
        torch.set_num_threads(start.threads)
        self._device = torch.device("cpu")
        if start.backend == "nccl":
            if not torch.cuda.is_available():
                raise RuntimeError(
                    f"GPUs are there, but torch {torch.__version__} finds no CUDA: install a CUDA build of torch, or "
                    "run with --gpus 0"
                )
            self._device = torch.device("cuda", start.rank)
            torch.cuda.set_device(self._device)
        self._store: dist.Store | None = _open_store() if start.rank == 0 else None

    @property
    def store_port(self) -> int | None:
        return self._store.port if isinstance(self._store, dist.TCPStore) else None

    def answer(self, request: Request) -> Reply:
        match request:
            case OpenGroup():
                return self._guarded(request.run, lambda: self._open_group(request))
            case Run():
                return self._guarded(request.run, lambda: self._run(request))
        raise TypeError(f"a rank was sent {request!r}, which no rank understands")

    def _guarded(self, run: int, work: Callable[[], bytes]) -> Reply:
        try:
            return Returned(run, work())
        except BaseException as error:  # sys.exit() and pytest.skip() are outcomes of the program as well
            at = time.monotonic()
            error.__traceback__ = _without_harness(error.__traceback__)
            return Raised(
                run=run,
                at=at,
                exception=payload.dump_exception(error),
                kind=_kind(error),
                message=str(error),
                text="".join(traceback.format_exception(error)),
                usable=self._usable(),
            )

    def _open_group(self, request: OpenGroup) -> bytes:
        if dist.is_initialized():
            dist.destroy_process_group()
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        if self._store is None:
            self._store = dist.TCPStore(LOOPBACK, request.store_port, is_master=False)
        dist.init_process_group(
            self._start.backend,
            store=dist.PrefixStore(request.name, self._store),
            rank=self._start.rank,
            world_size=self._start.world_size,
            timeout=timedelta(seconds=request.collective_timeout),
            device_id=self._device if self._device.type == "cuda" else None,
        )
        # The first collective connects the ranks; here it is no part of anybody's deadline.
        dist.barrier()
        self._synchronize()
        return b""

    def _run(self, request: Run) -> bytes:
        context = Context(
            rank=self._start.rank,
            world_size=self._start.world_size,
            backend=self._start.backend,
            device=self._device,
            seed=request.seed + self._start.rank,
        )
        self._seed(context.seed)
        entry, args, kwargs = payload.loads(request.task)
        result = entry(context, *args, **kwargs)
        self._synchronize()  # an error that the device meets later belongs to this run, not to the next
        with _unpicklable_named(result):
            return payload.dumps(result)

    def _seed(self, seed: int) -> None:
        # torch.manual_seed() would also queue the seed, with a formatted stack, for every kind of device
        # that is not initialised: 1.3 ms each time, and a queue that grows.
        torch.default_generator.manual_seed(seed)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _usable(self) -> bool:
        try:
            self._synchronize()
        except Exception:  # a device-side assert, an illegal address: the context is lost
            return False
        return True


@contextlib.contextmanager
def _unpicklable_named(result: object) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # pickling runs the object's own code, which may raise anything
        raise ResultNotPicklable(
            f"the program returned a {type(result).__qualname__} that cannot be pickled "
            f"({type(error).__name__}: {error}): return tensors, numbers, strings or containers of them"
        ) from None


def _without_harness(trace: TracebackType | None) -> TracebackType | None:
    # The outer frames are this package's; the author of the program is shown what the program did.
    while trace is not None and trace.tb_next is not None and _is_harness(trace):
        trace = trace.tb_next
    return trace


def _is_harness(trace: TracebackType) -> bool:
    return str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == "pytest_gpuperf"


def _kind(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _open_store() -> dist.TCPStore:
    # Bound here, to the loopback interface alone and to a port that the kernel picks: nothing is probed.
    listener = socket.create_server((LOOPBACK, 0))
    port = listener.getsockname()[1]
    return dist.TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a program may have closed or replaced its streams
            stream.flush()
