"""The rank's own main: answers the controller's requests one after another. Runs in rank processes.

It knows neither pytest nor what it runs: a task names its own entry function.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import random
import signal
import socket
import sys
import threading
import time
import traceback
import unittest
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from pytest_gpuperf.ranks import importable, malloc, nccl_debug, payload, scheduling, tracebacks
from pytest_gpuperf.ranks.calls import Calls
from pytest_gpuperf.ranks.channel import EMPTY, Channel, Letter, Parcel
from pytest_gpuperf.ranks.context import Context
from pytest_gpuperf.ranks.debugger import post_mortem
from pytest_gpuperf.ranks.delays import Delays
from pytest_gpuperf.ranks.groups import Groups
from pytest_gpuperf.ranks.informant import Informant
from pytest_gpuperf.ranks.messages import (
    Compare,
    Debug,
    OpenGroup,
    Raised,
    Request,
    Returned,
    Run,
    Settle,
    Settled,
    Start,
    Started,
    Tally,
    Withdrawal,
)
from pytest_gpuperf.ranks.module_state import ModuleState
from pytest_gpuperf.ranks.scene import Scene
from pytest_gpuperf.ranks.spec import MASTER_PORT, Opening, Place
from pytest_gpuperf.ranks.surroundings import Surroundings, stays_behind
from pytest_gpuperf.torch_internals import read_sequence_number

_SEEDS_OF_NUMPY = 1 << 32  # it takes no others


class ResultNotPicklable(TypeError):
    """A program returned something that cannot leave its process."""


def main(connection: Channel, inquiries: Channel, stacks_fd: int) -> None:
    """Serves the controller until it closes the connection.

    Args:
        connection: to the controller, for requests.
        inquiries: to the controller, for what is asked while a program runs.
        stacks_fd: file that receives the stacks of all threads on SIGUSR1, with or without the GIL.
    """
    faulthandler.enable(file=sys.stderr, all_threads=True)
    faulthandler.register(signal.SIGUSR1, file=stacks_fd, all_threads=True, chain=False)
    with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
        start, _ = connection.receive()
        pid = os.getpid()
        if start.backend == "gloo":
            malloc.share_arena()
            if not start.timed:
                scheduling.wait_for_turns()
        nccl_debug.keep_log()
        if start.cores:
            # Before any other thread of the rank: they inherit it. Memory is then taken from the cores' own node.
            os.sched_setaffinity(0, start.cores)
        importable.install()
        rank = _Rank(start, Informant(inquiries, start.backend), connection)
        connection.send(Started(rank.store_port, threading.get_ident()))
        while True:
            with rank.answer(*connection.receive()) as reply:
                if os.getpid() != pid:
                    _leave_as_a_child()
                _flush_output()
                connection.post(reply)


class _Rank:
    def __init__(self, start: Start, informant: Informant, connection: Channel) -> None:
        self._start = start
        self._informant = informant
        self._connection = connection
        self._place = start.place or Place(start.rank, start.world_size)
        torch.set_num_threads(start.threads)
        self._device = torch.device("cpu")
        if start.backend == "nccl":
            if not torch.cuda.is_available():
                raise RuntimeError(
                    f"GPUs are there, but torch {torch.__version__} finds no CUDA: install a CUDA build of torch, or "
                    "run with --gpus 0"
                )
            # A rank that sees its own GPU alone has it as the first.
            self._device = torch.device("cuda", self._place.local_rank % torch.cuda.device_count())
            torch.cuda.set_device(self._device)
        store = _open_store(self._place.store) if start.rank == 0 else None
        self.store_port = None if store is None else store.port
        self._groups = Groups(start, self._device, store)
        self._calls = None if start.timed or start.world_size == 1 else Calls(start.rank)
        self._informant.calls = self._calls
        self._found = Surroundings.now()
        self._usual = Scene.now({})
        self._modules = ModuleState()
        self._threads_raised: list[str] = []
        threading.excepthook = self._note_thread_error
        self._raised: BaseException | None = None
        self._before: dict[Any, int] | None = None
        """How many operations each group had issued when the run began; None if that is not known."""

    def answer(self, request: Request, enclosed: Parcel) -> Letter:
        match request:
            case OpenGroup():
                return self._guard(request.run, lambda: self._open_group(request))
            case Run():
                return self._guard(request.run, lambda: self._run(request, enclosed), request.debug, program=True)
            case Compare():
                return self._guard(request.run, lambda: (Parcel(pickle.dumps(self._groups.count_unchanged())), 0))
            case Settle():
                return self._guard(request.run, lambda: self._settle(request))
            case Debug():
                return self._guard(request.run, self._debug)
        raise TypeError(f"a rank was sent {request!r}, which no rank understands")

    def _guard(
        self, run: int, work: Callable[[], tuple[Parcel, int]], keep: bool = False, program: bool = False
    ) -> Letter:
        self._before = None
        try:
            result, collectives = work()
            return Letter(Returned(run, collectives, self._list_tallies() if program else None), result)
        except BaseException as error:  # sys.exit() and pytest.skip() are outcomes of the program as well
            at = time.monotonic()
            own = tracebacks.cut_harness(error.__traceback__)
            error.with_traceback(own)  # which needs no attribute that can be set
            self._raised = error if keep else None
            raised = Raised(
                run=run,
                at=at,
                exception=payload.dump_exception(error),
                kind=tracebacks.kind(error),
                message=tracebacks.extract_text(error),
                text="".join(traceback.format_exception(error)),
                place=tracebacks.place(own),
                withdrew=_find_withdrawal(error),
                usable=self._is_usable(),
                groups=self._count_if_silent(),
            )
            return Letter(raised)

    def _open_group(self, request: OpenGroup) -> tuple[Parcel, int]:
        began = time.time_ns()
        self._groups.open(request)
        if self._start.opening is Opening.LAUNCHER and MASTER_PORT not in os.environ:
            os.environ[MASTER_PORT] = port = str(request.store_port)
            self._found = replace(self._found, environment={**self._found.environment, MASTER_PORT: port})
        self._informant.group_opened(began)
        return EMPTY, 0

    def _run(self, request: Run, task: Parcel) -> tuple[Parcel, int]:
        context = Context(
            rank=self._start.rank,
            world_size=self._start.world_size,
            backend=self._start.backend,
            device=self._device,
            seed=request.seed + self._start.rank,
            _place=self._place,
            _meshes=self._groups.meshes,
            _control=self._groups.store,
            _modules=self._modules,
        )
        self._informant.since = time.time_ns()
        self._before = self._groups.read_sequence_numbers()
        before = _count_issued()
        if self._calls is not None:
            self._calls.begin(Delays.of(request, self._start.rank))
        importable.begin(request.scene.files)
        with request.scene.set_over(self._usual):
            entry, args, kwargs = payload.loads(task)
            self._modules.note()
            self._seed(context.seed)  # now: what the program's module imports has its generators
            if self._calls is not None:
                self._calls.delay()
            result = entry(context, *args, **kwargs)
            self._synchronize()  # an error that the device meets later belongs to this run, not to the next
            after = _count_issued()
            with _unpicklable_named(result):
                return payload.dumps(result), -1 if before is None or after is None else after - before

    def _list_tallies(self) -> tuple[Tally, ...] | None:
        return None if self._calls is None else self._calls.tally()

    def _count_if_silent(self) -> tuple[int, int] | None:
        try:
            return self._groups.count() if self._is_silent() else None
        except Exception:  # what a program made of torch's own state may raise anything
            return None

    def _is_silent(self) -> bool:
        before, after = self._before, self._groups.read_sequence_numbers()
        if before is None or after is None or after != {**dict.fromkeys(after, 0), **before} or self._groups.coalesce:
            return False
        # NCCL does not number sends and receives; the recorder has them. Gloo numbers them, and none is recorded.
        return self._start.backend == "gloo" or self._informant.is_silent()

    def _settle(self, request: Settle) -> tuple[Parcel, int]:
        left = stays_behind(self._found) + self._modules.list_changes() + self._threads_raised
        self._groups.settle(keep=request.keep, rest=request.rest)
        settled = Settled(left, [name for name in request.modules if name in sys.modules])
        return Parcel(pickle.dumps(settled)), 0

    def _note_thread_error(self, args: threading.ExceptHookArgs) -> None:
        threading.__excepthook__(args)  # prints it
        if args.exc_type is not SystemExit:
            name = "a thread" if args.thread is None else f"thread {args.thread.name}"
            text = "" if args.exc_value is None else tracebacks.extract_text(args.exc_value)
            self._threads_raised.append(f"an exception in {name}: {args.exc_type.__qualname__}: {text}")

    def _debug(self) -> tuple[Parcel, int]:
        error, self._raised = self._raised, None
        if error is not None:
            post_mortem(error, self._connection)
        return EMPTY, 0

    def _seed(self, seed: int) -> None:
        # torch.manual_seed() would also queue the seed, with a formatted stack, for every kind of device
        # that is not initialised: 1.3 ms each time, and a queue that grows.
        torch.default_generator.manual_seed(seed)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(seed)
        random.seed(seed)
        # The forkserver has it wherever torch brought numpy along; nobody else needs it.
        if (numpy_random := sys.modules.get("numpy.random")) is not None:
            numpy_random.seed(seed % _SEEDS_OF_NUMPY)

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _is_usable(self) -> bool:
        try:
            self._synchronize()
        except Exception:  # a device-side assert, an illegal address: the context is lost
            return False
        return True


def _count_issued() -> int | None:
    # Collectives on the default group; not sends and receives, which need not be the same on all ranks.
    group = dist.group.WORLD
    return None if group is None else read_sequence_number(group)


@contextlib.contextmanager
def _unpicklable_named(result: object) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # pickling runs the object's own code, which may raise anything
        raise ResultNotPicklable(
            f"the program returned a {type(result).__qualname__} that cannot be pickled "
            f"({type(error).__name__}: {error}): return tensors, numbers, strings or containers of them"
        ) from None


def _find_withdrawal(error: BaseException) -> Withdrawal | None:
    pytest, hypothesis = sys.modules.get("pytest"), sys.modules.get("hypothesis.errors")
    if isinstance(error, unittest.SkipTest) or (pytest is not None and isinstance(error, pytest.skip.Exception)):
        return Withdrawal.SKIPPED
    if hypothesis is not None and isinstance(error, hypothesis.UnsatisfiedAssumption):
        return Withdrawal.REJECTED
    return None


def _leave_as_a_child() -> NoReturn:
    # With its parent's channel it would answer in the parent's place.
    text = f"process {os.getpid()}, which the program forked, came out of the program: it ends here, as no rank\n"
    _flush_output()
    os.write(2, text.encode())
    os._exit(1)


def _open_store(address: str) -> dist.TCPStore:
    # Bound here, to one interface alone (loopback without a cluster) and to a port that the kernel picks: nothing is
    # probed.
    listener = socket.create_server((address, 0))
    port = listener.getsockname()[1]
    # Shared by stores that rank 0 opens on this port: without the launcher's store, env:// has it do so.
    return dist.TCPStore(
        address, port, is_master=True, wait_for_workers=False, multi_tenant=True, master_listen_fd=listener.detach()
    )


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a program may have closed or replaced its streams
            stream.flush()
